"""Makes the handle of what a request asks for: one adapter read, or several combined.

Made by `AdapterStore`, called by its `LoaderThreads`, several calls at a time. Knows no limit but the size of one
adapter.
"""

import threading
from collections.abc import Callable, Sequence
from time import perf_counter

from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterRequest
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.utils.logger import logger

ReadAdapter = Callable[[LoRARequest], AdapterWeights]
CombineAdapters = Callable[[WeightedLoRARequests, Sequence[AdapterWeights]], AdapterWeights]


class AdapterSourceReader:
    """Counts what it read, good or too large.

    Args:
        read: reads and checks an adapter; raises AdapterError.
        combine: makes one adapter of several, in the order of the request's parts; the same holds for it.
        peek: an adapter that is in memory, by its id.
        max_bytes: of one adapter.
    """

    def __init__(
        self,
        read: ReadAdapter,
        combine: CombineAdapters | None,
        peek: Callable[[int], AdapterHandle | None],
        *,
        max_bytes: int,
    ) -> None:
        self._read = read
        self._combine = combine
        self._peek = peek
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.num_loads = 0
        self.load_seconds = 0.0

    def load(self, request: AdapterRequest) -> AdapterHandle:
        """Raises AdapterError for what cannot be used or takes more than `max_bytes`."""
        start = perf_counter()
        if isinstance(request, LoRARequest):
            weights = self._read(request)
        else:
            assert self._combine is not None, "this store was made without a way to combine adapters"
            weights = self._combine(request, [self._weights_of(part) for part, _ in request.parts])
        handle = AdapterHandle.create(request, weights)
        seconds = perf_counter() - start
        with self._lock:
            self.num_loads += 1
            self.load_seconds += seconds
        handle.check_size(request, self._max_bytes)
        logger.info(
            "adapter %r: %.1f MiB in host memory after %.0f ms",
            request.name,
            handle.host_bytes / 2**20,
            seconds * 1e3,
        )
        return handle

    def _weights_of(self, part: LoRARequest) -> AdapterWeights:
        """A part's weights from memory, or else from disk without staying in memory: it may not be used alone."""
        resident = self._peek(part.lora_int_id)
        return self._read(part) if resident is None else resident.weights
