"""What is made of both servers' answers, and that each has the machine to itself while it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from tripower.bench.schema import Cell, single_cell
from tripower.bench.speculative import beside
from tripower.bench.speculative.asking import Answered, AnsweredGroup
from tripower.bench.speculative.beside import Comparison, Pair, PeerPlan, best_kind, compared, our_command
from tripower.bench.speculative.command import main, read_work
from tripower.runtime.kernel import InvalidConfiguration

PLAN = PeerPlan(
    path=Path("/models/m.gguf"), encoding="Q4_1", chats=True, mode="ngram-context", guesses=None, tokens=8, rounds=1, samples=2, prompts=2,
    concurrency=(1, 2), work=("edit", "chat"), threads=2,
)  # fmt: skip


def answers(*, speed: float, text: str = "same", count: int = 1) -> AnsweredGroup:
    one = Answered(text, 1.0, 10, 5, 6, 4, 3)
    return AnsweredGroup((one,) * count, 6 * count / speed)


def pair(ours: float, peer: float, ours_first: bool) -> Pair:
    return Pair(answers(speed=ours), answers(speed=peer, text="other"), ours_first)


def test_of_a_group_the_smaller_order_counts_and_of_groups_the_geometric_mean() -> None:
    groups = [[pair(20, 10, True), pair(30, 10, False)], [pair(80, 10, True), pair(90, 10, False)]]
    cell = compared("a cell", groups, "a note", beside.TARGETS["Q4_1"])
    assert cell.ratio == pytest.approx(4.0)  # of 2 and 8
    assert cell.peer == pytest.approx(10) and cell.ours == pytest.approx((20 * 30 * 80 * 90) ** 0.25, rel=1e-4)
    assert (cell.target, cell.ok) == ("ratio >= 1.5", True)
    assert compared("a cell", [[pair(10, 10, True)]], "", beside.TARGETS["Q4_1"]).ok is False


def test_the_peers_best_kind_is_the_fastest_one() -> None:
    def tried(kind: str, speed: float) -> Cell:
        return with_peer(single_cell(f"llamacpp, {kind}", None, unit="tokens/s"), speed)

    assert (
        best_kind([tried("none", 9.0), tried("ngram-mod:n_match=8", 11.0), tried("ngram-cache", 10.0)]) == "ngram-mod:n_match=8"
    )


def with_peer(cell: Cell, speed: float) -> Cell:
    return msgspec.structs.replace(cell, peer=speed)


@attrs.define
class FakeServer:
    is_paused: bool = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False


@attrs.define
class FakeSubject:
    name: str
    server: FakeServer = attrs.Factory(FakeServer)


async def test_each_prompt_is_asked_cold_and_kept_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, peer = FakeSubject("ours"), FakeSubject("peer")
    asked: list[tuple[str, int, int, bool]] = []

    async def ask_group(
        subject: FakeSubject, prompts: Sequence[Any], *, chats: bool, tokens: int, reuse: bool, at_once: int
    ) -> AnsweredGroup:
        assert at_once >= len(prompts)
        other = peer if subject is ours else ours
        assert other.server.is_paused and not subject.server.is_paused and chats
        asked.append((subject.name, len(prompts), tokens, reuse))
        return answers(speed=30.0 if subject is ours else 10.0, count=len(prompts))

    monkeypatch.setattr(beside, "ask_group", ask_group)
    monkeypatch.setattr(beside, "collected", nullcontext)  # the heap of a test run is large
    kept_cells = list[int]()
    comparison = Comparison(PLAN, ours, peer, lambda text: None, lambda cells: kept_cells.append(len(cells)))  # type: ignore[arg-type] # they do what is asked of subjects here
    await comparison.run()
    cold = [("ours", 1, 8, False), ("peer", 1, 8, False), ("peer", 1, 8, False), ("ours", 1, 8, False)]
    assert asked[:8] == cold * 2  # two prompts
    kept = [("ours", 1, 1, True), ("peer", 1, 1, True)]
    assert asked[8:14] == [*kept, *((name, width, tokens, True) for name, width, tokens, _ in cold)]
    both_at_once = [ask for ask in asked if ask[1] == 2]
    assert len(both_at_once) == 2 * (2 * 2 * 2 * 2 + 2)  # of two kinds of work; a single group has two rounds of each order
    cells = {cell.name: cell for cell in comparison.cells()}
    assert len(set(kept_cells)) == len(kept_cells) and kept_cells[-1] == len(cells)
    aim = cells["all repetitive × 1, request-wide"]
    assert (aim.ours, aim.peer, aim.ratio, aim.target, aim.ok) == (30.0, 10.0, 3.0, "ratio >= 1.5", True)
    assert (
        aim.note is not None
        and "4 of 4 texts equal; guesses right: ours 12 of 16, peer 12 of 16; prompts kept: ours 50%" in aim.note
    )
    assert cells["all repetitive × 2, request-wide, prompt kept"].target is None
    assert "chat × 2, request-wide" in cells and "<svg" in comparison.plot()


def test_our_server_guesses_and_has_the_peers_room() -> None:
    command = our_command(PLAN, 4)
    assert {"speculation.mode=ngram-context", "engine.context=2048", "scheduler.batch_members=4", "engine.threads=2"} <= set(
        command
    )
    assert not any("prefix" in word for word in command)  # reuse is on by default


def test_beside_a_peer_only_work_that_repeats_is_measured_unless_named() -> None:
    assert read_work(None, peer="llamacpp") == ("edit", "quote", "code", "json")
    assert "chat" in read_work(None, peer=None) and read_work("chat,code", peer="llamacpp") == ("chat", "code")
    with pytest.raises(InvalidConfiguration, match="no work called 'sums'"):
        read_work("sums", peer=None)


def test_a_kind_of_guesses_that_the_peer_lacks_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peer", "llamacpp", "--peer-guesses", "ngram"])
    assert "none of none, ngram-simple" in capsys.readouterr().err
