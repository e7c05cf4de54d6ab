"""What an adapter may be called.

Asked wherever a name comes from outside. A name is a label: it becomes a path only in `AdapterRoot`, which looks again.
"""

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


def is_adapter_name(name: str) -> bool:
    """Whether `name` is printable ASCII that needs no quoting anywhere, up to 128 characters."""
    return _NAME.fullmatch(name) is not None


def check_adapter_name(name: str) -> None:
    """Raise ValueError, naming the rule, for what is no adapter's name."""
    if not is_adapter_name(name):
        shown = ascii(name if len(name) <= 60 else name[:57] + "...")
        raise ValueError(
            f"{shown} cannot be an adapter's name: use up to 128 letters, digits and . _ : / @ + -, the first a letter "
            "or digit"
        )
