"""`CelRule` and the expressions that rules are built from. Contains no rules."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CelRule:
    """One entry of x-kubernetes-validations."""

    rule: str
    message: str
    """What is wrong and what to do; the user sees nothing else."""
    field_path: str = ""

    def manifest(self) -> dict[str, str]:
        """Return the entry."""
        entry = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        return entry | ({"fieldPath": self.field_path} if self.field_path else {})


def given(*fields: str, of: str = "self") -> str:
    """Return a guard that every field is set, and so are its parents."""
    paths = [field.split(".") for field in fields]
    prefixes = [".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)]
    return " && ".join(f"has({of}.{prefix})" for prefix in dict.fromkeys(prefixes))


def if_given(fields: tuple[str, ...], condition: str) -> str:
    """Return a rule that applies the condition only if every field is set."""
    return f"!({given(*fields)}) || {condition}"


def either(field: str, otherwise: str) -> str:
    """Return an expression for the field's value, or `otherwise` if it is not set."""
    return f"({given(field)} ? self.{field} : {otherwise})"


def matches(text: str, pattern: str) -> str:
    """Return a condition that a text matches a pattern, which must hold no single quote."""
    return f"{text}.matches(r'{pattern}')"


def is_one_of(field: str, *values: str) -> str:
    """Return a condition that the field is set to one of the values."""
    return f"({given(field)} && self.{field} in [{', '.join(map(repr, values))}])"


def within(field: str, limits: tuple[str, str], *, of: str = "") -> CelRule:
    """Return a rule that an amount which is given lies within its limits."""
    least, most = limits
    amount = f"quantity(self.{field})"
    condition = (
        f"size(self.{field}) == 0 || ({amount}.compareTo(quantity('{least}')) >= 0 && "
        f"{amount}.compareTo(quantity('{most}')) <= 0)"
    )
    message = f"{of}{field} is not within {least} to {most}; leave it out to have it sized"
    return CelRule(if_given((field,), condition), message, f".{field}")
