"""`tripower bench speculative`: what guesses bring for work of several kinds, on the same engine, and that no token changes.

Each prompt runs without and with guesses, right after one another and in both orders, alone and four at a time. Every answer is compared
token by token, greedy and sampled. A further figure needs no clock: what the answers cost by the number of rows of each step and the
table of row costs that the engine measured when it was loaded, for the worst prompt of all.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import attrs
import msgspec
import trio

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.runtime import Runtime
from tripower.api.embedding import open_runtime
from tripower.bench.host import describe_host
from tripower.bench.measured_model import add_model_options, find_measured_model
from tripower.bench.paired import Progress, collected
from tripower.bench.plot import dots_svg
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, single_cell
from tripower.bench.speculative.samples import Round, Sample, geometric_mean, run_group, score
from tripower.bench.workloads.prompts import REPETITIVE, Prompt, workloads
from tripower.runtime.configuration import Configuration, EngineSettings
from tripower.runtime.configuration.settings import SchedulerSettings, SpeculationChoices
from tripower.runtime.engine import ChatMessage, EngineInfo
from tripower.runtime.host import read_host_limits
from tripower.runtime.speculation import DEFAULT_ROW_COSTS, RowCosts, SpeculationSettings, make_drafter, read_strategy, simulate

HIGH = "high-acceptance"
TARGETS = {1: Target("ours", ">=", 1.75), 4: Target("ours", ">=", 1.2)}
HIGH_TARGET = Target("ours", ">=", 2.8)
WORST = Target("ours", ">=", 0.98)
SAME = Target("ours", ">=", 1.0)
SAMPLED = SamplingChoices(temperature=0.8, seed=7)
GREEDY = SamplingChoices(temperature=0.0)


@attrs.frozen(kw_only=True)
class Plan:
    """How much is measured. `rounds` are of each order."""

    model: str
    mode: str
    tokens: int
    rounds: int
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
    rounds: dict[tuple[str, int], list[list[Round]]] = attrs.Factory(dict)
    """By work and concurrency: the rounds of each group."""
    sampled: list[bool] = attrs.Factory(list)

    async def run(self) -> list[Cell]:
        """Blocks for many minutes, unless the plan is short."""
        chosen = {name: prompts[: self.plan.prompts] for name, prompts in workloads().items() if name in self.plan.work}
        for width in self.plan.concurrency:
            for name, prompts in chosen.items():
                groups = [prompts[first : first + width] for first in range(0, len(prompts), width)]
                self.rounds[name, width] = [await self._group(f"{name} × {width}", group) for group in groups]
        for name, prompts in chosen.items():
            self.progress(f"{name}, sampled")
            for prompt in prompts:
                self.sampled.append((await self._round([prompt], True, SAMPLED)).same)
        return list(self._cells(list(chosen)))

    async def _group(self, label: str, prompts: Sequence[Prompt]) -> list[Round]:
        found = []
        for number in range(self.plan.rounds):
            for plain_first in (True, False):
                self.progress(f"{label}: {prompts[0].name}, round {number + 1} of {self.plan.rounds}")
                found.append(await self._round(prompts, plain_first, GREEDY))
        return found

    async def _round(self, prompts: Sequence[Prompt], plain_first: bool, sampling: SamplingChoices) -> Round:
        groups = {}
        for plain in (plain_first, not plain_first):
            with collected():
                groups[plain] = await run_group(self.runtime, [self._request(each, plain, sampling) for each in prompts])
        return Round(plain=groups[True], guessing=groups[False], plain_first=plain_first)

    def _request(self, prompt: Prompt, plain: bool, sampling: SamplingChoices) -> GenerationRequest:
        request = GenerationRequest(
            model=self.model, max_tokens=self.plan.tokens, sampling=sampling, draft_max=0 if plain else None
        )
        if self.chats:
            return msgspec.structs.replace(request, messages=(ChatMessage("user", prompt.message),))
        return msgspec.structs.replace(request, prompt=prompt.plain)

    def _cells(self, names: Sequence[str]) -> list[Cell]:
        cells: list[Cell] = []
        for width in self.plan.concurrency:
            cells += [self._cell(name, width, steady) for name in names for steady in (False, True)]
            every = [score(group) for name in REPETITIVE for group in self.rounds.get((name, width), [])]
            if every:
                note = "geometric mean of edit, quote, code and json; request-wide, prompts included"
                cells.append(
                    single_cell(
                        f"all repetitive × {width}", geometric_mean(every), unit="×", target=TARGETS.get(width), note=note
                    )
                )
        if self.plan.each:
            cells += [
                single_cell(f"{name}, group {number} × {width}", score(group), unit="×")
                for (name, width), groups in self.rounds.items()
                for number, group in enumerate(groups, 1)
            ]
        return [*cells, *self._counted(names), *self._identity()]

    def _cell(self, name: str, width: int, steady: bool) -> Cell:
        groups = self.rounds[name, width]
        scores = [score(group, steady=steady) for group in groups]
        samples = [sample for group in groups for sample in group[0].guessing.samples]
        what = "steady decode" if steady else "request-wide"
        note = f"{_counts(samples)}; the worst of {len(scores)} is {min(scores):.2f} ×"
        target = HIGH_TARGET if name == HIGH and width == 1 and steady is False else None
        return single_cell(f"{name} × {width}, {what}", geometric_mean(scores), unit="×", target=target, note=note)

    def _counted(self, names: Sequence[str]) -> list[Cell]:
        """What the answers cost by the table, without a clock."""
        costs = RowCosts(self.info.row_costs) if self.info.row_costs else DEFAULT_ROW_COSTS
        settings = SpeculationSettings(strategy=read_strategy(self.plan.mode))
        gains: dict[str, list[float]] = {name: [] for name in names}
        for (name, width), groups in self.rounds.items():
            for sample in (each for group in groups for each in group[0].plain.samples if width == min(self.plan.concurrency)):
                drafter = make_drafter(settings, sample.prompt, costs)
                assert drafter is not None
                gains[name].append(simulate(sample.tokens, drafter, costs).gain)
        note = f"by passes and the row costs {tuple(costs.measured)}, which were measured at load"
        worst = min(gain for found in gains.values() for gain in found)
        cells = [single_cell(f"{name}, counted", geometric_mean(found), unit="×") for name, found in gains.items()]
        return [*cells, single_cell("worst prompt, counted", worst, unit="×", target=WORST, note=note)]

    def _identity(self) -> list[Cell]:
        rounds = [each for groups in self.rounds.values() for group in groups for each in group]
        same, sampled = [each.same for each in rounds], self.sampled
        return [
            single_cell(
                "identical answers", statistics.mean(same), unit="share", target=SAME, note=f"greedy; {len(same)} comparisons"
            ),
            single_cell(
                "identical answers, sampled",
                statistics.mean(sampled),
                unit="share",
                target=SAME,
                note=f"{len(sampled)} comparisons",
            ),
        ]

    def plot(self) -> str:
        """The gain of each group in each round, by work."""
        series = {
            f"{name} × {width}": [each.guessing.speed / each.plain.speed for group in groups for each in group]
            for (name, width), groups in self.rounds.items()
        }
        return dots_svg("Times as fast with guesses, request-wide", series, unit="×")


def _counts(samples: Sequence[Sample]) -> str:
    """Acceptance and yield, in words."""
    drafted, accepted = sum(each.drafted for each in samples), sum(each.accepted for each in samples)
    passes, tokens = sum(each.passes for each in samples), sum(max(len(each.tokens) - 1, 0) for each in samples)
    return f"{accepted} of {drafted} guesses right, {tokens / passes if passes else 1:.2f} tokens a pass"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status. Raises what loading the model and a pull raise. Blocks for many minutes."""
    options = _parser().parse_args(argv)
    work = tuple(options.work.split(",")) if options.work else tuple(workloads())
    with progress_line() as progress:
        file = find_measured_model(options.model, options.encoding, progress)
        plan = Plan(
            model=str(file.path),
            mode=options.mode,
            tokens=32 if options.quick else options.tokens,
            rounds=1 if options.quick else options.rounds,
            prompts=1 if options.quick else options.prompts,
            concurrency=tuple(int(width) for width in options.concurrency.split(",")),
            work=work,
            threads=options.threads or read_host_limits().cores,
            each=options.each,
        )
        cells, plot = trio.run(measure, plan, progress)
    if options.plot is not None:
        options.plot.write_text(plot)
    host = describe_host() | file.described() | {"threads": plan.threads, "mode": plan.mode, "tokens": plan.tokens}
    return finish(make_report("speculative", host, cells), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tripower bench speculative", description="Guessed tokens: what they bring, and that no answer changes."
    )
    add_model_options(parser)
    parser.add_argument("--mode", default="ngram-context", help="where guesses come from (ngram-context)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="longest answer (128)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds of each order (2)")
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help="prompts of each kind of work, at most (12)")
    parser.add_argument("--concurrency", default="1,4", metavar="N,…", help="answers at a time (1,4)")
    parser.add_argument("--work", metavar="NAME,…", help="kinds of work (all)")
    parser.add_argument("--each", action="store_true", help="a cell for each group of prompts as well")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine (the cores of this process)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the gains of all rounds to FILE as SVG")
    add_report_options(parser)
    return parser


async def measure(plan: Plan, progress: Progress) -> tuple[list[Cell], str]:
    """Load the model, and make every cell and the plot. Blocks for many minutes."""
    progress("loading the model")
    configuration = Configuration(
        engine=EngineSettings(threads=plan.threads),
        scheduler=SchedulerSettings(prefix_cache=False, batch_members=max(plan.concurrency)),
        speculation=SpeculationChoices(mode=plan.mode),
    )
    async with open_runtime(configuration, models=[plan.model]) as embedded:
        runtime = embedded.runtime
        ready = await runtime.load((await embedded.models())[0].name)
        measurement = Measurement(runtime, ready.name, ready.has_chat_template, ready.info, plan, progress)
        cells = await measurement.run()
        return cells, measurement.plot()
