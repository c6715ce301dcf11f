"""What queues decided in a recorded run is decided again in the same way; a rule that was changed is found."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.actors.rigs import Listener, Saboteur, open_toy, request, warm_up
from tests.actors.test_speculation import speculating
from tests.drafters import Teller
from tests.recordings import recorded_lines, through_file
from tripower.actors.dialogue import Failed, GenerationFinished
from tripower.actors.queueing import AnswerParts, Generate, outlet_room
from tripower.actors.replay import diary
from tripower.actors.replay.rerun import Replay, replay
from tripower.actors.replay.stage import ReplayedQueue
from tripower.actors.replay.turns import Checkpoint, Turn
from tripower.actors.runtime import Runtime, RuntimePlan
from tripower.actors.simulation.harness import Simulation
from tripower.actors.simulation.scenario import draw_scenario
from tripower.runtime.admission import Caller
from tripower.runtime.engine import SamplingParameters
from tripower.runtime.engine.step_loop import plan_rows
from tripower.runtime.introspection.recorder import Recorder
from tripower.runtime.introspection.recording import Beginning, Ending, FlightRecording, Line, Noted
from tripower.runtime.kernel import Outlet, Overloaded, deadline_after
from tripower.runtime.prefix_cache import PrefixSettings

CALLERS = [Caller(identity=name, alone=False, weight=weight) for name, weight in (("a", 1.0), ("b", 3.0), ("c", 0.5))]


async def crowd(runtime: Runtime, seed: int, count: int) -> None:
    """Requests of several keys with priorities and deadlines, more than there are places for; some give up."""
    rng = random.Random(seed)

    async def ask(number: int) -> None:
        await trio.sleep(rng.uniform(0, count))
        prompt, tokens, caller, priority = (
            "p" * rng.randint(1, 400),
            rng.randint(1, 12),
            rng.choice(CALLERS),
            rng.choice([-20, 0, 0, 60]),
        )
        deadline = deadline_after(rng.choice([None, None, 4.0, 20.0]))
        if number % 2:
            await ask_queue(runtime, prompt, tokens, caller, priority, deadline)
            return
        stop, ignore_eos = ("e",) if rng.random() < 0.4 else (), rng.random() < 0.5
        asked = request(prompt, tokens, caller=caller, priority=priority, stop=stop, ignore_eos=ignore_eos)
        scope = trio.CancelScope(deadline=deadline_after(rng.choice([None, None, 6.0])))
        await Listener().run(runtime.generate(asked, deadline=deadline), scope)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)


async def ask_queue(runtime: Runtime, prompt: str, tokens: int, caller: Caller, priority: int, deadline: float) -> None:
    """A request that leaves it to the queue to see that its time is over."""
    outlet: Outlet[Any] = Outlet(outlet_room(tokens))
    message = Generate(tuple(prompt.encode()), tokens, SamplingParameters(), caller=caller, priority=priority)
    with suppress(Overloaded):
        await (await runtime.ready("toy")).queue.ask(message, deadline=deadline, live=AnswerParts(outlet))
        while not any(isinstance(event, GenerationFinished | Failed) for event in await outlet.receive()):
            pass


def recording_of(folder: Path, seed: int = 1, count: int = 150, entries: int = 100_000, **plan: Any) -> FlightRecording:
    """A crowd's run, as a file has it."""
    lines: list[Line] = []

    async def main() -> None:
        options = {"members_max": 3, "waiting_max": 5, "steps_per_job": 4, "recorder_entries": entries, **plan}
        async with open_toy(**options) as (runtime, _):
            await warm_up(runtime)
            await crowd(runtime, seed, count)
            await trio.sleep(50)
            lines.extend(await recorded_lines(runtime))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return through_file(lines, folder)


def decisions(recording: FlightRecording) -> set[str]:
    """The words of all decisions."""
    return {decision[0] for note in recording.notes for decision in note.data.get("decided", ())}


def codes(recording: FlightRecording) -> set[str]:
    """What requests were told that came to nothing."""
    return {
        decision[-1]
        for note in recording.notes
        for decision in note.data.get("decided", ())
        if decision[0] in ("fail", "refuse")
    }


def assert_equal(result: Replay) -> None:
    assert not result.differences, result.differences[0]
    assert result.equal


def test_a_crowded_run_is_decided_again_in_the_same_way(tmp_path: Path) -> None:
    recording = recording_of(tmp_path)
    assert decisions(recording) >= {"seat", "wait", "refuse", "fail", "finish", "job", "stop"}
    assert codes(recording) >= {"deadline_exceeded", "share_exceeded"}
    result = replay(recording)
    assert_equal(result)
    assert result.queues == ("queue:toy",)
    assert result.skipped == 0 and result.turns > 300


def test_what_was_kept_of_prompts_is_taken_from_the_recording(tmp_path: Path) -> None:
    recording = recording_of(tmp_path, seed=2, prefix=PrefixSettings(entries_max=4, ttl_seconds=30))
    assert any(note.data.get("reuse") for note in recording.notes)
    assert_equal(replay(recording))


def test_a_recording_whose_beginning_was_overwritten_is_replayed_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diary, "CHECKPOINT_TURNS", 40)
    recording = recording_of(tmp_path, entries=150)
    assert recording.first > 1
    pages = [note.data for note in recording.notes if note.data["type"] == "checkpoint"]
    assert any(page.get("members") and page["gate"]["accounts"] and page.get("job", -1) >= 0 for page in pages)
    result = replay(recording)
    assert_equal(result)
    assert 0 < result.skipped < result.turns


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 150), marks=pytest.mark.long)], ids=["few", "many"])
def test_simulated_runs_with_faults_are_decided_again_in_the_same_way(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        run = RecordedSimulation(draw_scenario(seed))
        run.run()
        result = replay(through_file(run.lines, tmp_path))
        assert not result.differences, (seed, result.differences[0])


class RecordedSimulation(Simulation):
    """A run with a flight recorder."""

    lines: list[Line]

    def _plan(self) -> RuntimePlan:
        return attrs.evolve(super()._plan(), recorder_entries=100_000)

    async def _watch(self, runtime: Runtime) -> None:
        self.lines = []
        try:
            await super()._watch(runtime)
        finally:
            with trio.CancelScope(shield=True):
                self.lines = await recorded_lines(runtime)


def test_another_rule_of_the_gate_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recording_of(tmp_path)
    monkeypatch.setattr("tripower.runtime.admission.gate.PRIORITY_SECONDS", 0.0)  # first come, first served
    result = replay(recording)
    (difference,) = result.differences
    assert not result.equal and result.skipped > 0
    assert difference.queue == "queue:toy" and difference.recorded != difference.again


def test_another_rule_of_the_queue_is_found(tmp_path: Path) -> None:
    class Forgetful(ReplayedQueue):
        def _expire_members(self, now: float) -> bool:
            return False

    (difference,) = replay(recording_of(tmp_path), make_queue=Forgetful).differences
    assert ["fail", "deadline_exceeded"] in [[decision[0], decision[-1]] for decision in difference.recorded]


def test_another_rule_for_rows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recording_of(tmp_path, count=10)
    monkeypatch.setattr(
        "tripower.actors.replay.stage.plan_rows", lambda pending, rows_max, mixed: [min(each, 1) for each in pending]
    )
    (difference,) = replay(recording).differences
    assert difference.what.startswith("rows of a step")


def test_an_engine_may_take_fewer_rows_of_a_prompt_beside_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = 0

    def thrifty(pending: list[int], rows_max: int, mixed_rows: int | None = None) -> list[int]:
        nonlocal saved
        rows = plan_rows(pending, rows_max, mixed_rows)
        fewer = [each - (each > 1) for each in rows] if 1 in pending else rows
        saved += sum(rows) - sum(fewer)
        return fewer

    with monkeypatch.context() as patch:
        patch.setattr("tripower.runtime.engine.step_loop.plan_rows", thrifty)
        recording = recording_of(tmp_path, count=10)
    assert saved
    assert_equal(replay(recording))
    monkeypatch.setattr("tripower.actors.replay.stage.plan_rows", lambda pending, *_: [min(each, 1) for each in pending])
    assert replay(recording).differences  # more than are due is a difference


def test_a_decision_that_was_changed_in_the_file_is_found_at_its_number(tmp_path: Path) -> None:
    recording = recording_of(tmp_path, count=10)
    note = next(each for each in recording.notes if is_job(each))
    index = recording.records.index(note)
    changed = {**note.data, "decided": [*note.data["decided"], ["stop"]]}
    records = list(recording.records)
    records[index] = Noted(note.number, note.at, note.actor, changed)
    (difference,) = replay(attrs.evolve(recording, records=tuple(records))).differences
    assert difference.number == note.number
    assert difference.what == "decided stop, now nothing more"


def is_job(note: Noted) -> bool:
    return any(decision[0] == "job" for decision in note.data.get("decided", ()))


def test_behind_a_gap_the_next_checkpoint_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diary, "CHECKPOINT_TURNS", 50)
    recording = recording_of(tmp_path)
    turns = [record for record in recording.notes if record.data["type"] == "turn"]
    records = tuple(record for record in recording.records if record is not turns[20])
    result = replay(attrs.evolve(recording, records=records))
    assert_equal(result)
    assert 0 < result.skipped < 100


def test_an_instance_that_follows_a_crash_is_replayed_from_its_own_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saboteur = Saboteur()
    lines: list[Line] = []

    async def main() -> None:
        async with open_toy(on_instance=saboteur.on_instance, recorder_entries=10_000) as (runtime, _):
            await warm_up(runtime)
            await Listener().run(runtime.generate(request()))
            saboteur.arm("queue:toy")
            await Listener().run(runtime.generate(request()))
            await trio.sleep(10)
            await Listener().run(runtime.generate(request()))
            lines.extend(await recorded_lines(runtime))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    recording = through_file(lines, tmp_path)
    starts = [note for note in recording.notes if note.data["type"] == "checkpoint" and note.data["index"] < 0]
    assert len(starts) == 2
    assert_equal(replay(recording))


def test_with_nothing_to_decide_again_nothing_is_claimed() -> None:
    empty = FlightRecording(
        beginning=Beginning(version="1", pid=1, at="", clock=0.0, now=0.0), records=(), ending=Ending(records=0, now=0.0)
    )
    result = replay(empty)
    assert not result.equal and result.turns == 0


async def test_neither_prompts_nor_texts_nor_tokens_are_in_what_is_written_down(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy(recorder_entries=1000) as (runtime, _):
        await warm_up(runtime)
        await Listener().run(runtime.generate(request("secret prompt", 5, stop=("secret stop",))))
        recorder = runtime.system.recording
        assert isinstance(recorder, Recorder)
        pages = [record.data for record in recorder.read() if isinstance(record, Noted)]
    assert any(isinstance(page, Turn) for page in pages) and any(isinstance(page, Checkpoint) for page in pages)
    assert "secret" not in repr(pages)
    assert str(ord("s")) not in {str(value) for page in pages for value in numbers_in(page)}


def numbers_in(value: Any) -> list[int]:
    """Every number in nested plain data."""
    import msgspec

    match msgspec.to_builtins(value):
        case dict() as fields:
            return [number for each in fields.values() for number in numbers_in(each)]
        case list() | tuple() as items:
            return [number for each in items for number in numbers_in(each)]
        case int() as number:
            return [number]
    return []


def test_guesses_that_were_right_are_taken_from_the_recording(tmp_path: Path) -> None:
    lines: list[Line] = []

    async def main() -> None:
        async with speculating(Teller, recorder_entries=10_000) as (runtime, _, _):
            await Listener().run(runtime.generate(request("guess", 20)))
            lines.extend(await recorded_lines(runtime))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    recording = through_file(lines, tmp_path)
    assert any(step[3:] and step[3] for note in recording.notes for step in note.data.get("told", {}).get("steps", ()))
    assert_equal(replay(recording))
