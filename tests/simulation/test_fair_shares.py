"""A noisy key and a quiet one on virtual time: real queues, gate and batch, the toy as the engine, a second for each step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from tests.actors.rigs import open_toy, request, warm_up
from tripower.actors.dialogue import TokenChunk
from tripower.actors.models import LoadLimits
from tripower.actors.queueing import QueueLimits
from tripower.actors.runtime import Runtime
from tripower.runtime.admission import Caller
from tripower.runtime.kernel import Overloaded

SEATS, WAITING = 8, 16
NOISY_TOKENS = 150
NOISY_SHARE = SEATS / NOISY_TOKENS / 2
"""Requests a second: half of what the seats can serve."""
TIMES = 50
QUIET_PROMPT = "q" * 2000
"""About ten steps of prefill."""
QUIET_REQUESTS = 40
QUIET_PAUSE = 35.0
NOISY, QUIET = Caller(identity="noisy", alone=False), Caller(identity="quiet", alone=False)
LIMITS = LoadLimits(
    context=0,
    state_bytes_max=1 << 30,
    threads=1,
    queue=QueueLimits(members_max=SEATS, waiting_max=WAITING, steps_per_job=256, rows_max=256),
)


@attrs.define
class Seen:
    """What the callers saw."""

    first_tokens: dict[str, list[float]] = attrs.Factory(lambda: {"noisy": [], "quiet": []})
    refusals: Counter[tuple[str, str]] = attrs.Factory(Counter)
    asked: Counter[str] = attrs.Factory(Counter)


async def ask(runtime: Runtime, seen: Seen, who: str, caller: Caller, prompt: str, tokens: int) -> None:
    began = trio.current_time()
    seen.asked[who] += 1
    try:
        async with runtime.generate(request(prompt, tokens, caller=caller)) as generation:
            async for event in generation:
                if isinstance(event, TokenChunk) and began >= 0:
                    seen.first_tokens[who].append(trio.current_time() - began)
                    began = -1.0
    except Overloaded as error:
        seen.refusals[who, error.code] += 1


async def run(
    times: float, *, quiet: Caller = QUIET, noisy: Caller = NOISY, requests: int = QUIET_REQUESTS, noise: str = "noise"
) -> Seen:
    """The quiet key's requests, one now and then, while the noisy one asks for so many times its share."""
    seen, rng = Seen(), random.Random(7)
    async with open_toy(limits=LIMITS) as (runtime, _):
        await warm_up(runtime)
        async with trio.open_nursery() as everybody:
            if times:
                everybody.start_soon(_arrive, everybody, lambda: rng.expovariate(times * NOISY_SHARE), lambda: (
                    runtime, seen, "noisy", noisy, noise, NOISY_TOKENS
                ))  # fmt: skip
            quiet_rng = random.Random(11)
            await trio.sleep(200)
            async with trio.open_nursery() as asking:
                for _ in range(requests):
                    await trio.sleep(quiet_rng.expovariate(1 / QUIET_PAUSE))
                    asking.start_soon(ask, runtime, seen, "quiet", quiet, QUIET_PROMPT, 10)
            everybody.cancel_scope.cancel()
    return seen


async def _arrive(nursery: trio.Nursery, pause: Callable[[], float], what: Callable[[], tuple[Any, ...]]) -> None:
    while True:
        await trio.sleep(pause())
        nursery.start_soon(ask, *what())


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.parametrize("noise", ["noise", "n" * 1000])
async def test_a_noisy_key_raises_a_quiet_keys_time_to_first_token_by_less_than_a_third(
    noise: str, autojump_clock: trio.testing.MockClock
) -> None:
    alone, beside = await run(0), await run(TIMES, noise=noise)
    assert len(alone.first_tokens["quiet"]) == len(beside.first_tokens["quiet"]) == QUIET_REQUESTS  # none was refused
    ratio = p95(beside.first_tokens["quiet"]) / p95(alone.first_tokens["quiet"])
    print(f"{ratio:.3f}")
    assert ratio <= 1.3
    assert beside.refusals["noisy", "share_exceeded"] > 0.9 * beside.asked["noisy"] * (1 - 1 / TIMES) - WAITING


async def test_without_identities_the_noise_is_everybodys(autojump_clock: trio.testing.MockClock) -> None:
    """What the measurement above would show if the gate made no difference between them."""
    anybody = Caller(identity="both")
    beside = await run(TIMES, quiet=anybody, noisy=anybody, requests=8)
    assert beside.refusals["quiet", "queue_full"] >= 4
