"""Finds stop strings in text that arrives in pieces, and holds back text that may turn into one.

Called by `completion_builder`. Works on text alone: where a token ends makes no difference to what it finds.
"""


class StopStringMatcher:
    """The stop strings of one request."""

    def __init__(self, stop: list[str]) -> None:
        self._stop = stop

    def find(self, text: str, num_new: int) -> tuple[int, str] | None:
        """Start and stop string of the first match that ends in the last `num_new` characters of `text`.

        Of several matches the one that is complete first counts, as if characters came one by one; of those
        that end together, the longest.
        """
        matches = []
        for stop in self._stop:
            start = text.find(stop, max(0, len(text) - num_new - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def num_held(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string starts with: not to be shown yet."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
