"""What pydantic found wrong with a user's settings, as one readable line.

Called wherever settings come from outside Python: files and command lines. Knows no setting itself.
"""

from pydantic import ValidationError


def describe_validation_error(error: ValidationError) -> str:
    """One `field: message (got value)` for every wrong value."""
    lines = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        # A validator over several fields names the values itself, and its input is the whole mapping.
        got = "" if item["type"] in ("value_error", "missing") else f" (got {item['input']!r})"
        lines.append(f"{field}: {item['msg']}{got}" if field else item["msg"])
    return "; ".join(lines)
