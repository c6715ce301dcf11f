"""The hostile mixture is drawn from its seed."""

from __future__ import annotations

from collections import Counter

import msgspec

from tripower.bench.overload.requests import BRISK_MIX, FAULTS, MIX, Deck, Kind

HEADERS = {"noisy": {"authorization": "Bearer n"}, "quiet": {"authorization": "Bearer q"}}


def deck(seed: int = 1) -> Deck:
    return Deck("toy", HEADERS, seed=seed, tokens=(4, 6))


def test_the_same_seed_deals_the_same_requests_and_another_one_others() -> None:
    first, again, other = ([each.deal("noisy", each.draw()) for _ in range(50)] for each in (deck(), deck(), deck(2)))
    assert first == again
    assert first != other
    assert len({ask.id for ask in (*first, *other)}) == 100


def test_every_kind_is_dealt_by_its_percentage() -> None:
    dealing = deck()
    drawn = Counter(dealing.draw() for _ in range(5000))
    assert all(abs(drawn[kind] / 5000 - share / 100) < 0.02 for kind, share in MIX.items())
    assert sum(MIX.values()) == 100
    assert Kind.SLOW not in BRISK_MIX


def test_a_request_says_who_asks_and_what_its_client_does() -> None:
    dealing = deck()
    dealing.typical_seconds = 2.0
    late, bad, slow = (dealing.deal("quiet", kind) for kind in (Kind.DEADLINE, Kind.INVALID, Kind.SLOW))
    for ask in (late, bad, slow):
        assert b"authorization: Bearer q\r\n" in ask.request
        assert f"x-request-id: {ask.id}\r\n".encode() in ask.request
        assert 0 <= ask.patience <= 3.0
    assert b"x-tripower-deadline-ms: " in late.request
    assert bad.request.partition(b"\r\n\r\n")[2] in FAULTS
    body = msgspec.json.decode(slow.request.partition(b"\r\n\r\n")[2])
    assert body["stream"] and body["max_tokens"] == slow.tokens and slow.pause > 0
