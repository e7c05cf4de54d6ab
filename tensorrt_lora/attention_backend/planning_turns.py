"""Whose turn it is to plan, so that no host memory is written while a copy from it is in flight.

Used by `FlashInferAttentionMetadata`; knows of a wrapper only that its plan is copied to the device without
waiting.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Wrapper = TypeVar("Wrapper")


class PlanningTurns(Generic[Wrapper]):
    """Two wrappers that plan in turns.

    A wrapper plans into page-locked memory of its own and starts a copy to the device. Before it writes there
    again that copy must be over; with two, the host can be two steps ahead before it has to wait.
    """

    def __init__(self, first: Wrapper, second: Wrapper) -> None:
        self._turns = [(first, torch.cuda.Event()), (second, torch.cuda.Event())]

    @contextmanager
    def next(self) -> Iterator[Wrapper]:
        """The wrapper whose turn it is; plan inside the block."""
        self._turns.reverse()
        wrapper, copied = self._turns[0]
        copied.synchronize()
        yield wrapper
        copied.record()

    @property
    def planned(self) -> Wrapper:
        """The wrapper that planned last."""
        return self._turns[0][0]
