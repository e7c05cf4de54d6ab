"""A stand-in for the KV cache tensor: it remembers what was written where."""

from tensorrt_lora.engine.llm_request import LlmRequest


class KvContent:
    """For each page and offset: the adapter and all tokens up to the one whose keys and values are there."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._slots: dict[tuple[int, int], tuple[object, tuple[int, ...]]] = {}

    def write(self, request: LlmRequest, start: int, stop: int) -> None:
        """Compute the tokens at [start, stop), which attend to all before them."""
        self.check(request, start)
        for position in range(start, stop):
            self._slots[self._slot(request, position)] = self._value(request, position)

    def check(self, request: LlmRequest, stop: int) -> None:
        """Assert that the request's pages hold its own first `stop` tokens."""
        for position in range(stop):
            assert self._slots[self._slot(request, position)] == self._value(request, position)

    def _slot(self, request: LlmRequest, position: int) -> tuple[int, int]:
        return request.page_ids[position // self._page_size], position % self._page_size

    @staticmethod
    def _value(request: LlmRequest, position: int) -> tuple[object, tuple[int, ...]]:
        return request.adapter_key, tuple(request.tokens_between(0, position + 1))
