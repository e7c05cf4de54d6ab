"""Which pages hold which prefix: the index behind prefix reuse.

Owned by `KvCacheManager`. Maps the key of a full page to the page; knows nothing of who uses a page or of
free lists.

A key is the BLAKE2b digest (256 bits) of the parent's key and the page's token ids; the chain starts from the
adapter's id and version, or from the base model. So pages are shared only where all tokens up to them and the
weights are the same.
"""

import hashlib
from array import array

from tensorrt_lora.engine.llm_request import LlmRequest

_KEY_BYTES = 32


def extend_page_keys(request: LlmRequest, num_pages: int, page_size: int) -> list[bytes]:
    """Keys of the request's first `num_pages` pages, all full; they are kept on the request."""
    keys = request.page_keys
    while len(keys) < num_pages:
        parent = keys[-1] if keys else _root_key(request)
        start = len(keys) * page_size
        tokens = array("q", request.tokens_between(start, start + page_size))
        keys.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=_KEY_BYTES).digest())
    return keys[:num_pages]


def _root_key(request: LlmRequest) -> bytes:
    key = request.adapter_key
    origin = b"base" if key is None else f"adapter {key.adapter_id} {key.version}".encode()
    return hashlib.blake2b(origin, digest_size=_KEY_BYTES).digest()


class PrefixCache:
    """A two-way map between keys and pages."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    def match(self, keys: list[bytes]) -> list[int]:
        """The pages of the longest known run of leading keys."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def insert(self, key: bytes, page: int) -> None:
        """Register a page; the first one of a key stays, a later copy is left unregistered."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def remove(self, page: int) -> None:
        """Forget a page; nothing happens if it is not registered."""
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]

    def check_integrity(self) -> None:
        """Assert that the two directions agree."""
        assert {page: key for key, page in self._page_of.items()} == self._key_of
