"""When loader threads stand back, where the engine computes on the same processors.

A loader competes with the engine's steps for caches and memory, also on an idle core, which no priority prevents. Owned
by the engine, which knows whether it runs; readers call `give_way` after each piece of work.
"""

import threading
import time
from collections.abc import Callable

GiveWay = Callable[[], None]
_WORK_AT_ONCE_S = 5e-3  # with many short sleeps the same load takes more of the processor


def go_on() -> None:
    """Give way to nobody."""


class LoadPacer:
    """Keeps what all loaders work together near 1 / (1 + pause_ratio) of a processor, while the engine is busy.

    Args:
        pause_ratio: pause per work; 0 never pauses.
        is_busy: whether the engine has something to run; called on the loader threads.
        clock: seconds.
        work_clock: seconds that the calling thread worked since it began; waiting for the disk is no work.
        sleep: of seconds.
    """

    def __init__(
        self,
        pause_ratio: float,
        is_busy: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pause_ratio = pause_ratio
        self._is_busy = is_busy
        self._clock = clock
        self._work_clock = work_clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0  # pauses of several loaders follow each other
        self._accounted = threading.local()

    def give_way(self) -> None:
        """Pause for what the calling thread worked since it last did; a loader calls it after each piece."""
        if not self._pause_ratio:
            return
        worked = self._work_clock()
        work = worked - getattr(self._accounted, "seconds", 0.0)
        if work < _WORK_AT_ONCE_S:
            return
        self._accounted.seconds = worked
        if self._is_busy():
            self._sleep(self._reserve(work * self._pause_ratio))

    def stop(self) -> None:
        """Let the loaders run to their end."""
        self._pause_ratio = 0.0

    def _reserve(self, pause: float) -> float:
        """Seconds until the pauses reserved so far and this one are over."""
        with self._lock:
            now = self._clock()
            self._free_at = max(now, self._free_at) + pause
            return self._free_at - now
