"""Reads a settings file: one YAML mapping, or a message that names the file.

Called by the settings that a user can keep in a file. Knows no setting itself.
"""

from os import PathLike
from pathlib import Path

import yaml


def read_yaml_mapping(path: str | PathLike[str], *, of: str) -> dict[str, object]:
    """The mapping in a YAML file, {} for an empty one; `of` says what its fields are, for messages.

    Raises ValueError, naming the file, when it cannot be read, is no YAML, or holds something else.
    """
    file = Path(path)
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"settings file {str(file)!r} does not exist") from error
    except OSError as error:
        raise ValueError(f"settings file {str(file)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text: {error}") from error
    # The reader raises the last two for a date such as 2020-13-45, and for thousands of open brackets.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not valid YAML: {error}") from error
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise ValueError(f"{file}: expected a mapping of {of} fields, got {type(settings).__name__}")
    return settings
