"""Our server with guesses beside llama.cpp's own server with its best n-gram guesses: the same prompts, over HTTP, in the same run.

Each prompt is asked in both orders, *cold*, with nothing kept of it on either side, and *warm*, with prompt caches at their defaults and
the prompt evaluated before. Which guesses are the peer's best is tried first, each kind on a few prompts (see `peers.guessing`).

Both answer until their model ends, so texts may differ where two tokens are nearly as likely: what is compared is tokens a second of the
whole request, and how many texts are equal is told. llama.cpp's kinds with a memory over requests (`ngram-mod`) keep it from order to
order, as such a server would.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import msgspec

from tripower.bench.children import module_command, running_server
from tripower.bench.paired import Progress, collected
from tripower.bench.peers.guessing import TRIED
from tripower.bench.peers.registry import peer_command
from tripower.bench.plot import dots_svg
from tripower.bench.schema import Cell, Keep, Target, single_cell
from tripower.bench.serving.subject import Subject
from tripower.bench.speculative.asking import AnsweredGroup, ask_group
from tripower.bench.speculative.samples import geometric_mean, rounds_of, smaller_of_orders
from tripower.bench.workloads.prompts import REPETITIVE, Prompt, workloads

CONTEXT = 2048
"""Positions of each sequence on either side: prompts are at most half of that."""
TARGETS = {"Q4_1": Target("ratio", ">=", 1.5), "Q4_0": Target("ratio", ">=", 1.1)}
"""By what most matrices of the file are stored in."""
PEER = "llamacpp"
COLD, WARM = "request-wide", "request-wide, prompt kept"


@attrs.frozen(kw_only=True)
class PeerPlan:
    """How much is measured. `rounds` and `samples` are of each order: see `rounds_of`."""

    path: Path
    encoding: str
    chats: bool
    mode: str
    guesses: str | None
    """The peer's kind; None: the best of all."""
    tokens: int
    rounds: int
    samples: int
    prompts: int
    concurrency: tuple[int, ...]
    work: tuple[str, ...]
    threads: int
    kinds: tuple[str, ...] = TRIED


class Pair(msgspec.Struct, frozen=True):
    """Both sides' answers to one group of prompts."""

    ours: AnsweredGroup
    peer: AnsweredGroup
    ours_first: bool

    @property
    def ratio(self) -> float:
        return self.ours.speed / self.peer.speed


@attrs.define
class Comparison:
    """Two running servers, and all that they have answered."""

    plan: PeerPlan
    ours: Subject
    peer: Subject
    progress: Progress
    keep: Keep
    pairs: dict[tuple[str, int, bool], list[list[Pair]]] = attrs.Factory(dict)
    """By work, concurrency and whether prompts were kept: the pairs of each group."""

    async def run(self) -> None:
        """Blocks for many minutes, unless the plan is short."""
        chosen = {name: prompts[: self.plan.prompts] for name, prompts in workloads().items() if name in self.plan.work}
        for width in self.plan.concurrency:
            for name, prompts in chosen.items():
                groups = [[prompt] for prompt in prompts] if width == 1 else [prompts]
                rounds = rounds_of(len(groups), rounds=self.plan.rounds, samples=self.plan.samples)
                for warm in (False, True):
                    self.pairs[name, width, warm] = [await self._group(name, width, group, rounds, warm) for group in groups]
                self.keep(self.cells())

    async def _group(self, name: str, width: int, prompts: Sequence[Prompt], rounds: int, warm: bool) -> list[Pair]:
        """A prompt alone, or all of a kind of work, `width` of them at a time."""
        if warm:
            for ours in (True, False):
                await self._ask(ours, prompts, width, tokens=1, reuse=True)
        found = []
        for number in range(rounds):
            for ours_first in (True, False):
                kept = ", prompt kept" if warm else ""
                self.progress(f"{name} × {width}{kept}: {prompts[0].name}, round {number + 1} of {rounds}")
                sides = {}
                for ours in (ours_first, not ours_first):
                    sides[ours] = await self._ask(ours, prompts, width, tokens=self.plan.tokens, reuse=warm)
                found.append(Pair(sides[True], sides[False], ours_first))
        return found

    async def _ask(self, ours: bool, prompts: Sequence[Prompt], width: int, *, tokens: int, reuse: bool) -> AnsweredGroup:
        asked, other = (self.ours, self.peer) if ours else (self.peer, self.ours)
        with other.server.paused(), collected():
            return await ask_group(asked, prompts, chats=self.plan.chats, tokens=tokens, reuse=reuse, at_once=width)

    def cells(self) -> list[Cell]:
        """Of every work, and of all that repeat their prompts."""
        cells = []
        for width in self.plan.concurrency:
            for warm in (False, True):
                what = WARM if warm else COLD
                found = {name: self.pairs[name, width, warm] for name in self.plan.work if (name, width, warm) in self.pairs}
                cells += [compared(f"{name} × {width}, {what}", groups, self._note(groups)) for name, groups in found.items()]
                every = [group for name in REPETITIVE for group in found.get(name, ())]
                if every:
                    target = None if warm else TARGETS.get(self.plan.encoding)
                    note = f"geometric means over edit, quote, code and json; {self._note(every)}"
                    cells.append(compared(f"all repetitive × {width}, {what}", every, note, target))
        return cells

    def _note(self, groups: Sequence[Sequence[Pair]]) -> str:
        pairs = [pair for group in groups for pair in group]
        both = [each for pair in pairs for each in zip(pair.ours.answers, pair.peer.answers, strict=True)]
        same = sum(ours.text == peer.text for ours, peer in both)
        sides = (("ours", [ours for ours, _ in both]), ("peer", [peer for _, peer in both]))
        told = ", ".join(f"{name} {sum(a.accepted for a in side)} of {sum(a.drafted for a in side)}" for name, side in sides)
        kept = ", ".join(
            f"{name} {sum(a.cached_tokens for a in side) / sum(a.prompt_tokens for a in side):.0%}" for name, side in sides
        )
        return f"{same} of {len(both)} texts equal; guesses right: {told}; prompts kept: {kept}"

    def plot(self) -> str:
        """The ratio of each group in each round, by work."""
        series = {
            f"{name} × {width}{', kept' if warm else ''}": [pair.ratio for group in groups for pair in group]
            for (name, width, warm), groups in self.pairs.items()
        }
        return dots_svg("Our tokens a second by llama.cpp's, both with guesses", series, unit="×")


def compared(name: str, groups: Sequence[Sequence[Pair]], note: str, target: Target | None = None) -> Cell:
    """Geometric means over groups, of each side's speed and of the ratios: the smaller one of both orders."""
    ratio = smaller_of_orders(((pair.ours_first, pair.ratio) for pair in group) for group in groups)
    cell = single_cell(name, geometric_mean(pair.ours.speed for group in groups for pair in group), unit="tokens/s", note=note)
    peer = single_cell(name, geometric_mean(pair.peer.speed for group in groups for pair in group), unit="tokens/s").ours
    return msgspec.structs.replace(
        cell,
        peer=peer,
        ratio=single_cell(name, ratio, unit="").ours,
        target=None if target is None else str(target),
        ok=None if target is None else target.met_by(ratio),
    )


async def compare(plan: PeerPlan, progress: Progress, keep: Keep) -> tuple[list[Cell], str, str]:
    """The cells, the plot, and the peer's guesses. Blocks for many minutes."""
    guesses, tried = plan.guesses, list[Cell]()
    if guesses is None:
        tried = await try_kinds(plan, progress)
        guesses = best_kind(tried)
    progress("loading the model")
    seats = max(plan.concurrency)
    async with running_server(our_command(plan, seats), name="tripower serve", ready_path="/ready") as server:
        ours = await Subject.open(server)
        async with contextlib.AsyncExitStack() as running:
            with server.paused():
                peer = await running.enter_async_context(running_peer(plan, guesses, seats))
            comparison = Comparison(plan, ours, peer, progress, keep)
            await comparison.run()
        return [*comparison.cells(), *tried], comparison.plot(), guesses


async def try_kinds(plan: PeerPlan, progress: Progress) -> list[Cell]:
    """The peer's speed with each of its kinds, over the first prompt of each work that repeats; nobody else runs. Blocks for minutes."""
    prompts = [workloads()[name][0] for name in plan.work if name in REPETITIVE] or [workloads()["edit"][0]]
    cells = []
    for kind in plan.kinds:
        progress(f"trying llama.cpp with {kind}")
        async with running_peer(plan, kind, 1) as peer:
            groups = [await ask_group(peer, [p], chats=plan.chats, tokens=plan.tokens, reuse=False) for p in prompts]
        answers = [each for group in groups for each in group.answers]
        right = f"{sum(each.accepted for each in answers)} of {sum(each.drafted for each in answers)} guesses right"
        speed = geometric_mean(group.speed for group in groups)
        cell = single_cell(f"{PEER}, {kind}", speed, unit="tokens/s", note=f"{right}; {len(prompts)} prompts, tried once")
        cells.append(msgspec.structs.replace(cell, ours=None, peer=cell.ours))
    return cells


def best_kind(tried: Sequence[Cell]) -> str:
    """The fastest one's word."""
    return max(tried, key=lambda cell: cell.peer or 0.0).name.removeprefix(f"{PEER}, ")


@asynccontextmanager
async def running_peer(plan: PeerPlan, guesses: str, seats: int) -> AsyncIterator[Subject]:
    """llama.cpp's server with these guesses."""
    command = peer_command(PEER, plan.path, threads=plan.threads, parallel=seats, context=CONTEXT, guesses=guesses)
    async with running_server(command, name=PEER) as server:
        yield Subject(server, model="default")


def our_command(plan: PeerPlan, seats: int) -> list[str]:
    """The command line of our server, for `running_server`: prefixes are reused by default, tokens are guessed."""
    command = module_command("tripower", "serve", str(plan.path), "--host", "127.0.0.1", "--port", "{port}", "--quiet")
    settings = (
        f"engine.threads={plan.threads}", f"engine.context={CONTEXT}", f"scheduler.batch_members={seats}",
        f"speculation.mode={plan.mode}",
    )  # fmt: skip
    return [*command, *(word for setting in settings for word in ("--set", setting))]
