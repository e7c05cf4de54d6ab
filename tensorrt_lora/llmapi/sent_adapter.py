"""An adapter as it travels to the engine: plain data, with paths that mean the same in every process.

Called by `request_runner`; the user's own object stays with the answer. Does not know whether an adapter is good.
"""

import os
from pathlib import Path

from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests


def sent_adapter(
    adapter: LoRARequest | WeightedLoRARequests | None,
) -> LoRARequest | WeightedLoRARequests | None:
    """A copy without classes of the user's, which the engine's process might not be able to import.

    A relative path, or one with `~`, becomes absolute where it exists: the engine's process has a working directory of
    its own. Anything else, a hub id above all, stays as it is.
    """
    if isinstance(adapter, WeightedLoRARequests):
        return WeightedLoRARequests(tuple((_plain(request), weight) for request, weight in adapter.parts))
    return None if adapter is None else _plain(adapter)


def _plain(request: LoRARequest) -> LoRARequest:
    return LoRARequest(request.lora_name, request.lora_int_id, _absolute_if_local(request.lora_path))


def _absolute_if_local(path: str) -> str:
    local = os.path.expanduser(path)  # `os.path` asks about any text without raising
    # Not `resolve` or `abspath`: a message about the adapter should name it as the user does, links and all.
    return str(Path(local).absolute()) if os.path.exists(local) else path
