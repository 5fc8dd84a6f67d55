"""`CelRule` and the guards that rules are written with. Holds no rule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CelRule:
    """One entry of x-kubernetes-validations."""

    rule: str
    message: str
    """What is wrong and what to do: it is all that the user sees."""
    field_path: str = ""

    def manifest(self) -> dict[str, str]:
        """Return the entry."""
        entry = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        return entry | ({"fieldPath": self.field_path} if self.field_path else {})


def given(*fields: str, of: str = "self") -> str:
    """Return the guard that every field exists, its parents included."""
    paths = [field.split(".") for field in fields]
    prefixes = [".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)]
    return " && ".join(f"has({of}.{prefix})" for prefix in dict.fromkeys(prefixes))


def if_given(fields: tuple[str, ...], condition: str) -> str:
    """Return a rule that holds unless every field is given and the condition is false."""
    return f"!({given(*fields)}) || {condition}"


def either(field: str, otherwise: str) -> str:
    """Return the field's value, or `otherwise` where it is not given."""
    return f"({given(field)} ? self.{field} : {otherwise})"


def is_one_of(field: str, *values: str) -> str:
    """Return whether the field is given and one of the values."""
    return f"({given(field)} && self.{field} in [{', '.join(map(repr, values))}])"
