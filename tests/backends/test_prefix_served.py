"""Our engines behind a queue that keeps what they evaluated: every answer is the one of a queue that keeps nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.actors.rigs import Listener, queue_figures
from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.backends.toy import ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress, StepEngine
from tripower.runtime.engine.contract import SPECULATION
from tripower.runtime.kernel import InlineLane
from tripower.runtime.prefix_cache import PrefixSettings
from tripower.runtime.speculation import SpeculationSettings, Strategy

B, CONTEXT, VOCABULARY, SEATS = 64, 200, 300, 2
RNG = random.Random(11)
LONG = tuple(RNG.randrange(250) for _ in range(2 * B + 20))
CUTS = (B - 1, B, B + 1, 2 * B)


class One:
    """A backend of one engine that is there."""

    name = "toy"

    def __init__(self, engine: StepEngine) -> None:
        self.engine = engine

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        yield LoadedModel(self.engine, ToyText())


def asked(prompt: tuple[int, ...], number: int, tokens: int, **changes: Any) -> GenerationRequest:
    """Half of them greedy, half of them seeded with penalties that look at the whole prompt."""
    sampling = SamplingChoices(temperature=0.0)
    if number % 2:
        sampling = SamplingChoices(temperature=0.8, seed=number, repeat_penalty=1.1, repeat_last_n=-1)
    return GenerationRequest(model="toy", prompt=prompt, max_tokens=tokens, sampling=sampling, ignore_eos=True, **changes)


def requests() -> list[GenerationRequest]:
    """Beginnings that part around the borders of pages, and floods of other text that need all the memory there is."""
    rng = random.Random(3)
    found = []
    for number in range(14):
        cut = CUTS[number % len(CUTS)]
        prompt = LONG[:cut] + tuple(rng.randrange(250) for _ in range(rng.choice([0, 1, 20])))
        if number % 4 == 3:
            prompt = tuple(rng.randrange(250) for _ in range(150))
        found.append(asked(prompt, number, rng.randint(2, CONTEXT - len(prompt)) if number % 3 == 0 else 3))
    return [*found, found[0], found[2]]


async def answers(runtime: Runtime) -> list[list[int]]:
    listeners: list[Listener] = []
    wanted = requests()
    for first in range(0, len(wanted), 3):
        async with trio.open_nursery() as nursery:
            for request in wanted[first : first + 3]:
                listeners.append(Listener())
                nursery.start_soon(listeners[-1].run, runtime.generate(request))
    assert all(listener.error is None for listener in listeners)
    return [listener.tokens for listener in listeners]


# BB-046, BB-047
@pytest.mark.parametrize("loader", ["load_native", "load_torch", "load_accelerated"])
async def test_no_answer_changes_whatever_is_kept_and_evicted(
    loader: str, request: pytest.FixtureRequest, tiny_model: Any, autojump_clock: MockClock
) -> None:
    path = tiny_model("llama", vocabulary=VOCABULARY)
    found = []
    guessing = SpeculationSettings(strategy=Strategy.NGRAM_CONTEXT)
    for prefix, speculation in ((None, None), (PrefixSettings(), guessing), (PrefixSettings(), None)):
        engine = request.getfixturevalue(loader)(path, context=CONTEXT, sequences_max=SEATS)
        options: dict[str, Any] = {"prefix": prefix, "members_max": SEATS}
        if SPECULATION not in engine.info.unsupported:
            options["speculation"] = speculation
        plan = toy_plan(backends={"toy": One(engine)}, open_port=lambda: InlineLane(lambda job: 0.01), **options)
        async with open_actors(plan) as runtime:
            found.append(await answers(runtime))
            figures = queue_figures(runtime)
            assert figures.batch.aborted_jobs == 0
    assert found[0] == found[1] == found[2]
    assert figures.prefix is not None and figures.prefix.hits > 4 and figures.prefix.evicted_capacity > 0
