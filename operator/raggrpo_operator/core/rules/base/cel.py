"""Building blocks of CEL expressions. Contains no rules."""


def specified(*fields: str, of: str = "self") -> str:
    """Return a condition that every field and all its parents are set."""
    return " && ".join(f"{optional(field, of)}.hasValue()" for field in fields)


def optional(field: str, of: str = "self") -> str:
    """Return an expression for a field as a CEL optional; its parents may be missing.

    The API server evaluates all rules on every write, including status writes, and copies a block
    whenever a rule reads one of its fields. Checking each level with `has` would double the reads.
    """
    return f"{of}.?{field.replace('.', '.?')}"


def if_specified(fields: tuple[str, ...], condition: str) -> str:
    """Return a rule that applies the condition only if every field is set."""
    return f"!({specified(*fields)}) || {condition}"


def is_filled(field: str) -> str:
    """Return a condition that a text or list is set and not empty."""
    return f"(has(self.{field}) && size(self.{field}) > 0)"


def value_or(field: str, default: str, of: str = "self") -> str:
    """Return an expression for the field's value, or `default` if it is not set."""
    return f"{optional(field, of)}.orValue({default})"


def matches(text: str, pattern: str) -> str:
    """Return a condition that a text matches a pattern, which must not contain a single quote."""
    return f"{text}.matches(r'{pattern}')"


def is_one_of(field: str, *values: str) -> str:
    """Return a condition that the field is set to one of the values."""
    return f"({value_or(field, repr(''))} in [{', '.join(map(repr, values))}])"


def within(field: str, limits: tuple[str, str]) -> str:
    """Return a condition that an amount is empty or within `limits`."""
    lowest, highest = limits
    amount = f"quantity(self.{field})"
    return (
        f"size(self.{field}) == 0 || ({amount}.compareTo(quantity('{lowest}')) >= 0 && "
        f"{amount}.compareTo(quantity('{highest}')) <= 0)"
    )


ON_CPU = is_one_of("resources.device", "CPU")
DISAGGREGATED = is_one_of("resources.placement", "Disaggregated")
PADDED = is_one_of("training.rowLayout", "Padded")
HAS_RAG_SCORE = (
    f"({specified('reward.functions')} && self.reward.functions.exists(f, f.name == 'RagScore'))"
)
"""Condition that RagScore is a reward; `self` is the spec, as in the three conditions above."""
