"""Running two branches of a forward on two CUDA streams: the switch, the fork and the join.

Called by `LoraLayer.forward_with_base` (the fork), `CUDAGraphRunner` and `PyTorchModelEngine` (the switch). Every
stream and event of a forward is made, waited for and recorded here, so that the rules below are kept in one place:

* the auxiliary stream waits for the main stream before its first use, and the main stream waits for it before
  anything else is queued there: a tensor freed after the join can be reused by the main stream without a race;
* tensors that cross streams are allocated on the main stream before the fork; nothing calls `record_stream`,
  which inside a capture would keep blocks alive until the capture ends;
* Dynamo never sees a stream or an event (torch 2.11 traces them wrongly, pytorch issue 176486).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T0 = TypeVar("T0")
T1 = TypeVar("T1")

# Lower is more urgent. LoRA kernels are few and short; at equal priority the base GEMM fills every SM first.
_AUX_STREAM_PRIORITY = -1


class _MultiStreamState(threading.local):
    enabled = False


_state = _MultiStreamState()


def do_multi_stream() -> bool:
    """Whether the calling thread is inside `with_multi_stream(True)`."""
    return _state.enabled


@contextmanager
def with_multi_stream(enabled: bool) -> Iterator[None]:
    """Allow (or forbid) a second stream for the forwards of the calling thread inside the block."""
    previous = _state.enabled
    _state.enabled = enabled
    try:
        yield
    finally:
        _state.enabled = previous


def create_aux_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A high-priority stream beside the current one; None where there is no second stream to run on."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device=device, priority=_AUX_STREAM_PRIORITY)


def create_event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """The fork and the join event of one call site. They are reused by every call: each use is ordered by the join."""
    return torch.cuda.Event(), torch.cuda.Event()


def maybe_execute_in_parallel(
    fn0: Callable[[], T0],
    fn1: Callable[[], T1],
    event0: torch.cuda.Event | None,
    event1: torch.cuda.Event | None,
    aux_stream: torch.cuda.Stream | None = None,
    disable_on_compile: bool = False,
) -> tuple[T0, T1]:
    """Run `fn0` on the current stream and `fn1` beside it on `aux_stream`, and join; else one after the other.

    Args:
        fn0: queued first, on the current stream.
        fn1: may depend only on work queued before the call; must not allocate tensors that outlive the call.
        event0: recorded on the current stream before `fn0`; the auxiliary stream waits for it.
        event1: recorded on the auxiliary stream after `fn1`; the current stream waits for it after `fn0`.
        aux_stream: None means sequential, as does a thread outside `with_multi_stream(True)`.
        disable_on_compile: run sequentially while torch.compile traces the caller.

    Returns:
        The two results; both are safe to use on the current stream.
    """
    compiling = disable_on_compile and torch.compiler.is_compiling()
    if aux_stream is None or not do_multi_stream() or compiling:
        return fn0(), fn1()
    assert event0 is not None and event1 is not None, "a parallel call needs its two events"
    event0.record()
    result0 = fn0()
    with torch.cuda.stream(aux_stream):
        event0.wait()
        result1 = fn1()
        event1.record()
    event1.wait()
    return result0, result1
