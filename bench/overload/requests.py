"""The requests of a hostile mixture: what each asks for, how its client behaves, and the bytes that are sent.

Everything is drawn from a seed, so that two runs send the same requests in the same order. What a client does later, leave or read
slowly, is drawn with its request.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tripower.bench.http_client import build_request
from tripower.bench.serving.workload import short_prompt

PATH = "/v1/completions"
PATIENCE_MAX = 1.5
"""Of those who leave, in terms of how long an answer takes."""
DEADLINES = (0.1, 3.0)
"""In the same terms."""
PAUSES_SECONDS = (0.02, 0.1)
"""Of slow readers, between two pieces."""


class Kind(StrEnum):
    """How a client behaves."""

    STREAM = "stream"
    WHOLE = "whole"
    SLOW = "slow"
    """Reads a stream in small pieces, with pauses."""
    LEAVING = "leaving"
    """Closes the connection at some moment: before the answer, in its middle, or too late."""
    DEADLINE = "deadline"
    INVALID = "invalid"


MIX: Mapping[Kind, int] = {
    Kind.STREAM: 40,
    Kind.WHOLE: 20,
    Kind.SLOW: 8,
    Kind.LEAVING: 12,
    Kind.DEADLINE: 10,
    Kind.INVALID: 10,
}
"""Percent."""
BRISK_MIX: Mapping[Kind, int] = {kind: share for kind, share in MIX.items() if kind is not Kind.SLOW}
"""Of clients that ask again as soon as they are answered: a slow reader would stand for load that there is not."""

FAULTS: tuple[bytes, ...] = (
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": "a", "max_tokens": "many"}',
    b'{"prompt": "a", "max_tokens": 5, "temperature": -1}',
    b'{"prompt": "a", "max_tokens": 5, "stop": [""]}',
    b'{"prompt": "a", "max_tokens": 5, "model": "no-such-model"}',
    b'{"prompt": "a", "max_tokens": 5, "n": 4000}',
)
"""Bodies that are refused as they are, whatever the load."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request and how its client behaves."""

    id: str
    key: str
    kind: Kind
    request: bytes
    stream: bool
    tokens: int
    patience: float = 0.0
    """Seconds after which a leaving client leaves."""
    pause: float = 0.0
    """Seconds between the reads of a slow one."""


class Deck:
    """Deals requests. `headers` are who each key's holder is. `typical_seconds`, how long an answer takes, may be set any time."""

    def __init__(self, model: str, headers: Mapping[str, Mapping[str, str]], *, seed: int, tokens: tuple[int, int]) -> None:
        self._model, self._headers, self._tokens = model, headers, tokens
        self._choose = random.Random(seed)
        self._name = f"load-{seed}"
        self.typical_seconds = 1.0
        self._dealt = 0

    def draw(self, mix: Mapping[Kind, int] = MIX) -> Kind:
        """A kind, by its percentage."""
        return self._choose.choices(tuple(mix), tuple(mix.values()))[0]

    def deal(self, key: str, kind: Kind, *, tokens: int | None = None, prompt: str | None = None) -> Ask:
        """The next request of this key."""
        choose = self._choose
        self._dealt += 1
        tokens = tokens or choose.randint(*self._tokens)
        stream = kind in (Kind.STREAM, Kind.SLOW) or (kind is not Kind.WHOLE and choose.random() < 0.5)
        headers = {**self._headers[key], "x-request-id": f"{self._name}-{self._dealt}"}
        if kind is Kind.DEADLINE:
            headers["x-tripower-deadline-ms"] = str(round(choose.uniform(*DEADLINES) * self.typical_seconds * 1000) + 1)
        body = choose.choice(FAULTS) if kind is Kind.INVALID else self._body(tokens, stream, prompt)
        return Ask(
            id=headers["x-request-id"],
            key=key,
            kind=kind,
            request=build_request("POST", PATH, body, headers=headers),
            stream=stream,
            tokens=tokens,
            patience=choose.uniform(0, PATIENCE_MAX) * self.typical_seconds,
            pause=choose.uniform(*PAUSES_SECONDS) if kind is Kind.SLOW else 0.0,
        )

    def _body(self, tokens: int, stream: bool, prompt: str | None) -> bytes:
        body = {
            "model": self._model,
            "prompt": short_prompt(self._dealt) if prompt is None else prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)
