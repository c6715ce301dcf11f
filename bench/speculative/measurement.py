"""One engine, asked with and without guesses: all answers, the cells that they come to, and the plot.

*Cold* requests have nothing kept of their prompts. *Warm* ones find the states of a prompt that was evaluated before: what is left to
compare is nearly the decoding alone, which is what a second question about the same text looks like.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import attrs
import msgspec

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.runtime import Runtime
from tripower.api.embedding import open_runtime
from tripower.bench.paired import Progress, collected
from tripower.bench.plot import dots_svg
from tripower.bench.schema import Cell, Keep, Target, single_cell
from tripower.bench.speculative.samples import Round, Sample, geometric_mean, rounds_of, run_group, score
from tripower.bench.workloads.prompts import REPETITIVE, Prompt, workloads
from tripower.runtime.configuration import Configuration, EngineSettings
from tripower.runtime.configuration.settings import SchedulerSettings, SpeculationChoices
from tripower.runtime.engine import ChatMessage, EngineInfo
from tripower.runtime.engine.row_costs import costs_of
from tripower.runtime.speculation import SpeculationSettings, make_drafter, read_strategy, simulate

HIGH = "high-acceptance"
TARGETS = {1: Target("ours", ">=", 1.75), 4: Target("ours", ">=", 1.2)}
HIGH_TARGET = Target("ours", ">=", 2.8)
WORST = Target("ours", ">=", 0.98)
SAME = Target("ours", ">=", 1.0)
SAMPLED = SamplingChoices(temperature=0.8, seed=7)
GREEDY = SamplingChoices(temperature=0.0)
COLD, WARM = "request-wide", "request-wide, prompt kept"

Rounds = list[list[Round]]
"""Of each group of prompts."""


@attrs.frozen(kw_only=True)
class Plan:
    """How much is measured."""

    model: str
    mode: str
    tokens: int
    rounds: int
    samples: int
    """Of each order, as `rounds`: see `rounds_of`."""
    prompts: int
    concurrency: tuple[int, ...]
    work: tuple[str, ...]
    threads: int
    each: bool


@attrs.define
class Measurement:
    """One engine, and all that it has answered."""

    runtime: Runtime
    model: str
    chats: bool
    info: EngineInfo
    plan: Plan
    progress: Progress
    keep: Keep
    rounds: dict[tuple[str, int], Rounds] = attrs.Factory(dict)
    """By work and concurrency, with nothing kept of the prompts."""
    warm: dict[tuple[str, int], Rounds] = attrs.Factory(dict)
    """The same with prompts that were evaluated before."""
    gains: dict[str, list[float]] = attrs.Factory(dict)
    """By work, what each answer would gain by the table; of the first concurrency, since answers are the same at every one."""
    sampled: list[bool] = attrs.Factory(list)

    async def run(self) -> list[Cell]:
        """Blocks for many minutes, unless the plan is short."""
        chosen = {name: prompts[: self.plan.prompts] for name, prompts in workloads().items() if name in self.plan.work}
        for width in self.plan.concurrency:
            for name, prompts in chosen.items():
                groups = [[prompt] for prompt in prompts] if width == 1 else [prompts]
                rounds = rounds_of(len(groups), rounds=self.plan.rounds, samples=self.plan.samples)
                for kept, found in ((False, self.rounds), (True, self.warm)):
                    found[name, width] = [await self._group(name, width, group, rounds, kept) for group in groups]
                if name not in self.gains:
                    self.gains[name] = self._gains(self.rounds[name, width])
                self.keep(self.cells())
        for name, prompts in chosen.items():
            self.progress(f"{name}, sampled")
            for prompt in prompts:
                self.sampled.append((await self._round([prompt], 1, True, SAMPLED, False)).same)
        return self.cells()

    async def _group(self, name: str, width: int, prompts: Sequence[Prompt], rounds: int, warm: bool) -> list[Round]:
        """A prompt alone, or all of a kind of work, `width` of them at a time."""
        label, found = f"{name} × {width}{', kept' if warm else ''}", []
        if warm:
            evaluating = [msgspec.structs.replace(self._request(each, True, GREEDY, True), max_tokens=1) for each in prompts]
            await run_group(self.runtime, evaluating, at_once=width)
        for number in range(rounds):
            for plain_first in (True, False):
                self.progress(f"{label}: {prompts[0].name}, round {number + 1} of {rounds}")
                found.append(await self._round(prompts, width, plain_first, GREEDY, warm))
        return found

    async def _round(
        self, prompts: Sequence[Prompt], width: int, plain_first: bool, sampling: SamplingChoices, warm: bool
    ) -> Round:
        groups = {}
        for plain in (plain_first, not plain_first):
            with collected():
                requests = [self._request(each, plain, sampling, warm) for each in prompts]
                groups[plain] = await run_group(self.runtime, requests, at_once=width)
        return Round(plain=groups[True], guessing=groups[False], plain_first=plain_first)

    def _request(self, prompt: Prompt, plain: bool, sampling: SamplingChoices, warm: bool) -> GenerationRequest:
        draft_max, tokens = 0 if plain else None, self.plan.tokens
        request = GenerationRequest(
            model=self.model, max_tokens=tokens, sampling=sampling, draft_max=draft_max, cache_prompt=warm
        )
        if self.chats:
            return msgspec.structs.replace(request, messages=(ChatMessage("user", prompt.message),))
        return msgspec.structs.replace(request, prompt=prompt.plain)

    def cells(self) -> list[Cell]:
        """Of what has been measured."""
        cells: list[Cell] = []
        for width in self.plan.concurrency:
            cells += [cell for name, at in self.warm if at == width for cell in self._work_cells(name, width)]
            cells += [*self._all_cells(width)]
        if self.plan.each:
            cells += [
                single_cell(f"{name}, group {number} × {width}", score([group]), unit="×")
                for (name, width), groups in self.rounds.items()
                for number, group in enumerate(groups, 1)
            ]
        return [*cells, *self._counted(), *self._identity()]

    def _all_cells(self, width: int) -> Iterator[Cell]:
        """Of all work that repeats its prompt."""
        for rounds, what, target in ((self.rounds, COLD, TARGETS.get(width)), (self.warm, WARM, None)):
            every = [group for name in REPETITIVE for group in rounds.get((name, width), [])]
            if every:
                note = "geometric mean of edit, quote, code and json, prompts included"
                yield single_cell(f"all repetitive × {width}, {what}", score(every), unit="×", target=target, note=note)

    def _work_cells(self, name: str, width: int) -> Iterator[Cell]:
        cold, warm = self.rounds[name, width], self.warm[name, width]
        target = HIGH_TARGET if name == HIGH and width == 1 else None
        yield _cell(f"{name} × {width}, {COLD}", cold, target=target)
        yield _cell(f"{name} × {width}, {WARM}", warm)
        yield _cell(f"{name} × {width}, steady decode", cold, steady=True)

    def _gains(self, groups: Rounds) -> list[float]:
        costs, gains = costs_of(self.info.row_costs), list[float]()
        settings = SpeculationSettings(strategy=read_strategy(self.plan.mode))
        for sample in (each for group in groups for each in group[0].plain.samples):
            drafter = make_drafter(settings, sample.prompt, costs)
            assert drafter is not None
            gains.append(simulate(sample.tokens, drafter, costs).gain)
        return gains

    def _counted(self) -> list[Cell]:
        """What the answers cost by the table, without a clock."""
        note = f"by passes and the row costs {costs_of(self.info.row_costs).measured}, which were measured at load"
        worst = min(gain for found in self.gains.values() for gain in found)
        cells = [single_cell(f"{name}, counted", geometric_mean(found), unit="×") for name, found in self.gains.items()]
        return [*cells, single_cell("worst prompt, counted", worst, unit="×", target=WORST, note=note)]

    def _identity(self) -> list[Cell]:
        measured = [*self.rounds.values(), *self.warm.values()]
        rounds = [each for groups in measured for group in groups for each in group]
        greedy = _same("identical answers", [each.same for each in rounds], note="greedy; ")
        return [*greedy, *_same("identical answers, sampled", self.sampled)]

    def plot(self) -> str:
        """The gain of each group in each round, by work."""
        series = {
            f"{name} × {width}{kept}": [each.guessing.speed / each.plain.speed for group in groups for each in group]
            for rounds, kept in ((self.rounds, ""), (self.warm, ", kept"))
            for (name, width), groups in rounds.items()
        }
        return dots_svg("Times as fast with guesses, request-wide", series, unit="×")


def _same(name: str, same: Sequence[bool], *, note: str = "") -> list[Cell]:
    """The share of answers that are the same; no cell where none was compared."""
    note += f"{len(same)} comparisons"
    return [single_cell(name, statistics.mean(same), unit="share", target=SAME, note=note)] if same else []


def _cell(name: str, groups: Rounds, *, steady: bool = False, target: Target | None = None) -> Cell:
    """One kind of work at one concurrency."""
    worst = min(score([group], steady=steady) for group in groups)
    samples = [sample for group in groups for sample in group[0].guessing.samples]
    note = f"{_counts(samples)}; the worst of {len(groups)} is {worst:.2f} ×"
    return single_cell(name, score(groups, steady=steady), unit="×", target=target, note=note)


def _counts(samples: Sequence[Sample]) -> str:
    """Acceptance and yield, in words."""
    drafted, accepted = sum(each.drafted for each in samples), sum(each.accepted for each in samples)
    passes, tokens = sum(each.passes for each in samples), sum(max(len(each.tokens) - 1, 0) for each in samples)
    return f"{accepted} of {drafted} guesses right, {tokens / passes if passes else 1:.2f} tokens a pass"


async def measure(plan: Plan, progress: Progress, keep: Keep) -> tuple[list[Cell], str]:
    """Load the model, and make every cell and the plot. Blocks for many minutes."""
    progress("loading the model")
    configuration = Configuration(
        engine=EngineSettings(threads=plan.threads),
        scheduler=SchedulerSettings(batch_members=max(plan.concurrency)),
        speculation=SpeculationChoices(mode=plan.mode),
    )
    async with open_runtime(configuration, models=[plan.model]) as embedded:
        runtime = embedded.runtime
        ready = await runtime.load((await embedded.models())[0].name)
        measurement = Measurement(runtime, ready.name, ready.has_chat_template, ready.info, plan, progress, keep)
        cells = await measurement.run()
        return cells, measurement.plot()
