"""How much a key may ask for in a minute, and the headers that tell its holder.

Requests are counted when they come, tokens when they are known: those of the prompt as soon as it has been tokenised, those of the
answer as they are generated. So a request is let in while anything is left, and what it takes beyond that is paid with waiting.
"""

from __future__ import annotations

import math

from tripower.api.http.exchange import Header
from tripower.runtime.admission.bucket import TokenBucket
from tripower.runtime.kernel import Overloaded

REQUESTS, TOKENS = "requests", "tokens"


class Meter:
    """The buckets of one key; a limit of 0 is none. `now` is Trio's time, in seconds."""

    def __init__(self, requests_per_minute: int, tokens_per_minute: int, *, now: float) -> None:
        self.limits = (requests_per_minute, tokens_per_minute)
        limited = {REQUESTS: requests_per_minute, TOKENS: tokens_per_minute}
        self._buckets = {name: TokenBucket(limit, now=now) for name, limit in limited.items() if limit}

    def admit(self, now: float) -> None:
        """Count a request. Raises `Overloaded` (429 `rate_limit_exceeded`) with the time after which one is let in."""
        for name, bucket in self._buckets.items():
            seconds = bucket.seconds_until(1, now)
            if seconds > 0:
                raise Overloaded(
                    f"this key has used up its {bucket.per_minute} {name} a minute; try again in {math.ceil(seconds)} s",
                    code="rate_limit_exceeded",
                    status=429,
                    kind="rate_limit_error",
                    retry_after=seconds,
                )
        if REQUESTS in self._buckets:
            self._buckets[REQUESTS].take(1, now)

    def spend(self, tokens: int, now: float) -> None:
        """Count tokens of a prompt or of an answer."""
        if TOKENS in self._buckets:
            self._buckets[TOKENS].take(tokens, now)

    def headers(self, now: float) -> list[Header]:
        """`x-ratelimit-…`: the limit, what is left, and when all of it is there again, for each limit that there is."""
        headers: list[Header] = []
        for name, bucket in self._buckets.items():
            left, full_in = max(0, math.floor(bucket.level(now))), bucket.seconds_until(bucket.per_minute, now)
            for what, value in (("limit", str(bucket.per_minute)), ("remaining", str(left)), ("reset", duration(full_in))):
                headers.append((f"x-ratelimit-{what}-{name}".encode(), value.encode()))
        return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `120ms`, `1s`, `6m0s`; rounded up."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole = math.ceil(milliseconds / 1000)
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
