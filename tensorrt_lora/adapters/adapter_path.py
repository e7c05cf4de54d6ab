"""From what a user calls an adapter to its files: a path, or a hub id.

Called from the loader thread and by checks. The hub's local cache is asked first, so an adapter that is in it needs no
network, however often it is read.
"""

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from tensorrt_lora.adapters.adapter_error import AdapterProblems

# "owner/name": a name without an owner is more often a mistyped path.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WEIGHTS = ["adapter_model*", "*.nemo"]
_FILES = ["adapter_config.json", *_WEIGHTS]
_TIMEOUT_S = 10.0


def resolve_adapter_path(path: str, problems: AdapterProblems) -> Path:
    """The adapter's directory or archive; a path that does not exist comes back as it is.

    Raises AdapterError for a hub id that is neither in the local cache nor on the hub, and for what can be no path.
    """
    try:
        local = Path(path).expanduser()
        if local.exists() or not _HUB_ID.fullmatch(path):
            return local
    except OSError as error:
        problems.fail(f"the path cannot be used: {error.strerror}")
    except RuntimeError:  # by `expanduser`
        problems.fail("the path begins with the home directory of a user who does not exist; write it out")
    try:
        snapshot = Path(snapshot_download(path, allow_patterns=_FILES, local_files_only=True))
        # The cache may hold a part of it only, such as the configuration.
        if any(any(snapshot.glob(pattern)) for pattern in _WEIGHTS):
            return snapshot
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        pass
    try:
        return Path(snapshot_download(path, allow_patterns=_FILES, etag_timeout=_TIMEOUT_S))
    except Exception as error:
        # The network, the hub, the cache: what is raised depends on the HTTP client of the hub's version.
        reason = str(error).strip().partition("\n")[0]
        problems.fail(f"neither an existing path, nor in the local hub cache, nor reachable on the hub: {reason}")
