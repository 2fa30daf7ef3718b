"""A token bucket: how many bytes per second one end of a link may send, with a second's worth at once."""

from __future__ import annotations


class TokenBucket:
    """Fills at a rate, up to what it holds in a second; what is taken beyond that has to be waited for."""

    __slots__ = ("_at_s", "_bytes_per_s", "_level")

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._level = bytes_per_s  # bytes; below 0: taken in advance
        self._at_s: float | None = None

    def take(self, num_bytes: int, now_s: float) -> float:
        """Take bytes that have come; for how long nothing more may be read then, in seconds (0: not at all)."""
        since_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        filled = min(self._bytes_per_s, self._level + since_s * self._bytes_per_s)
        self._level = filled - num_bytes
        return max(0.0, -self._level / self._bytes_per_s)


class RateLimits:
    """A bucket for everyone who sends, however many connections they use."""

    def __init__(self, max_bytes_per_s: int | None) -> None:
        """max_bytes_per_s: of each sender; None: no limit."""
        self._max_bytes_per_s = max_bytes_per_s
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, name: str, num_bytes: int, now_s: float) -> float:
        """As of the sender's bucket."""
        if self._max_bytes_per_s is None:
            return 0.0
        return self._buckets.setdefault(name, TokenBucket(self._max_bytes_per_s)).take(num_bytes, now_s)
