"""Which request holds which pages of the KV cache. Host bookkeeping only: no tensors.

Called by the scheduler. A page is free (nothing in it), held (by one or more requests), or cached: held by
nobody, but its content is registered for reuse until the page is needed. Page 0 is never handed out; padding
rows write to it.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.prefix_cache import PrefixCache, extend_page_keys


@dataclass(frozen=True, slots=True)
class KvCacheStats:
    """Pages in each state, which add up to `total_pages` without the reserved one; reuse so far in tokens."""

    total_pages: int
    free_pages: int
    cached_pages: int
    held_pages: int
    queried_tokens: int
    hit_tokens: int


class KvCacheManager:
    """Pages of `page_size` tokens with prefix reuse; cached pages give way in least recently used order.

    Args:
        num_pages: pages of the cache tensor, the reserved page 0 included.
        page_size: tokens in a page.
        enable_block_reuse: register and reuse full pages.
    """

    def __init__(self, num_pages: int, page_size: int, enable_block_reuse: bool) -> None:
        assert num_pages >= 2 and page_size >= 1
        self.page_size = page_size
        self.total_pages = num_pages - 1
        self._enable_block_reuse = enable_block_reuse
        self._free: deque[int] = deque(range(1, num_pages))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holders = [0] * num_pages
        self._prefixes = PrefixCache()
        self._queried_tokens = 0
        self._hit_tokens = 0

    @property
    def num_available_pages(self) -> int:
        """Pages that nobody holds; what the reuse cache keeps in them gives way."""
        return len(self._free) + len(self._cached)

    def num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def match_prefix(self, request: LlmRequest) -> int:
        """Leading tokens of `request` that the cache holds right now; changes nothing.

        Whole pages, and never all tokens: at least one is left to compute, as its logits are wanted. Always 0
        for a request with prompt_logprobs, which needs the logits of every position.
        """
        return len(self._matching_pages(request)) * self.page_size

    def allocate(self, request: LlmRequest, num_tokens: int, *, headroom: int = 0) -> bool:
        """Make `request.page_ids` long enough for `num_tokens`, all or nothing.

        A request that holds no pages first takes over those that `match_prefix` finds and starts behind them
        (`num_computed_tokens`).

        Args:
            headroom: refuse unless this many pages would still be available afterwards.

        Returns:
            False, with nothing changed, if there are too few pages.
        """
        reused = [] if request.page_ids else self._matching_pages(request)
        num_new = self.num_pages_for(num_tokens) - len(request.page_ids) - len(reused)
        num_revived = sum(page in self._cached for page in reused)
        if num_new + headroom > self.num_available_pages - num_revived:
            return False
        if not request.page_ids:
            request.num_computed_tokens = len(reused) * self.page_size
            self._queried_tokens += num_tokens
            self._hit_tokens += request.num_computed_tokens
        for page in reused:
            self._cached.pop(page, None)
            self._hold(request, page)
        for _ in range(num_new):
            self._hold(request, self._take_page())
        return True

    def commit(self, request: LlmRequest) -> None:
        """Register full pages for reuse; `num_computed_tokens` says how far they are written."""
        first, stop = request.num_committed_pages, request.num_computed_tokens // self.page_size
        if not self._enable_block_reuse or first >= stop:
            return
        keys = extend_page_keys(request, stop, self.page_size)
        for key, page in zip(keys[first:], request.page_ids[first:stop], strict=True):
            self._prefixes.insert(key, page)
        request.num_committed_pages = stop

    def free(self, request: LlmRequest, *, discard: bool = False) -> None:
        """Let go of the request's pages; it starts from nothing if it runs again. May be called twice.

        Args:
            discard: its content is not to be trusted: none of its pages is reused any more.
        """
        # Backwards, so that the end of a prefix gives way before its beginning, without which it cannot be
        # found.
        for page in reversed(request.page_ids):
            if discard:
                self._prefixes.remove(page)
            self._holders[page] -= 1
            if self._holders[page] > 0:
                continue
            if page in self._prefixes:
                self._cached[page] = None
            else:
                self._free.append(page)
        request.page_ids = []
        request.num_computed_tokens = 0
        request.num_committed_pages = 0

    def stats(self) -> KvCacheStats:
        free, cached = len(self._free), len(self._cached)
        return KvCacheStats(
            total_pages=self.total_pages,
            free_pages=free,
            cached_pages=cached,
            held_pages=self.total_pages - free - cached,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
        )

    def check_integrity(self, requests: Iterable[LlmRequest]) -> None:
        """Assert that every page is in one state; `requests` are all that may hold pages. For tests."""
        held = Counter(page for request in requests for page in request.page_ids)
        assert 0 not in held, "page 0 was handed out"
        assert dict(held) == {page: count for page, count in enumerate(self._holders) if count}
        everywhere = [*self._free, *self._cached, *held]
        assert sorted(everywhere) == list(range(1, self.total_pages + 1)), "pages lost or in two states"
        self._prefixes.check_integrity()
        assert not any(page in self._prefixes for page in self._free), "a free page is registered for reuse"
        assert all(page in self._prefixes for page in self._cached), "a cached page is not registered"

    def _matching_pages(self, request: LlmRequest) -> list[int]:
        if not self._enable_block_reuse or request.sampling_params.prompt_logprobs is not None:
            return []
        most = (request.num_tokens - 1) // self.page_size
        return self._prefixes.match(extend_page_keys(request, most, self.page_size))

    def _hold(self, request: LlmRequest, page: int) -> None:
        self._holders[page] += 1
        request.page_ids.append(page)

    def _take_page(self) -> int:
        if self._free:
            return self._free.popleft()
        page, _ = self._cached.popitem(last=False)
        self._prefixes.remove(page)
        return page
