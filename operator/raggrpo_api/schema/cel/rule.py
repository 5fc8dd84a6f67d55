"""`CelRule` and the expressions that rules are built from. Contains no rules."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CelRule:
    """One entry of x-kubernetes-validations."""

    rule: str
    message: str
    """What is wrong and what to do; the user sees nothing else."""
    field_path: str = ""
    message_expression: str = ""
    """For a message that only the API server can tell; `message` stands for it if it fails."""

    def manifest(self) -> dict[str, str]:
        """Return the entry."""
        entry = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        more = {"fieldPath": self.field_path, "messageExpression": self.message_expression}
        return entry | {key: value for key, value in more.items() if value}


def given(*fields: str, of: str = "self") -> str:
    """Return a guard that every field is set, and so are its parents."""
    return " && ".join(f"{optional(field, of)}.hasValue()" for field in fields)


def optional(field: str, of: str = "self") -> str:
    """Return an expression for a field's optional value, which its parents may lack.

    The API server copies the table of a block's fields whenever a rule reads one of them, and
    evaluates all rules at each write, also of the status: `has` at each level reads twice as often.
    """
    return f"{of}.?{field.replace('.', '.?')}"


def if_given(fields: tuple[str, ...], condition: str) -> str:
    """Return a rule that applies the condition only if every field is set."""
    return f"!({given(*fields)}) || {condition}"


def either(field: str, otherwise: str) -> str:
    """Return an expression for the field's value, or `otherwise` if it is not set."""
    return f"{optional(field)}.orValue({otherwise})"


def matches(text: str, pattern: str) -> str:
    """Return a condition that a text matches a pattern, which must hold no single quote."""
    return f"{text}.matches(r'{pattern}')"


def is_one_of(field: str, *values: str) -> str:
    """Return a condition that the field is set to one of the values."""
    return f"({either(field, repr(''))} in [{', '.join(map(repr, values))}])"


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
