"""`record`: what the ring holds, or what passes in the next seconds; neither prompts nor keys unless they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.actors.rigs import complete, open_toy, warm_up
from tests.recordings import lines_of_record, recorded_lines, through_file
from tripower.actors.replay.rerun import replay
from tripower.api.console.verb import Subject
from tripower.api.console.verbs.record import BATCH, LATEST, VERBS, arguments_of, record, show
from tripower.runtime.introspection.recorder import Recorder
from tripower.runtime.introspection.recording import Beginning, Ending, Line, Passed, write_lines
from tripower.runtime.kernel import InvalidRequest

SECRET = "do not tell anybody"


def messages(lines: list[Line]) -> list[Passed]:
    return [line for line in lines if isinstance(line, Passed)]


async def test_what_the_ring_holds_is_answered_between_a_beginning_and_an_end(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with open_toy(recorder_entries=1000) as (runtime, _):
        await warm_up(runtime)
        await complete(runtime)
        lines = await recorded_lines(runtime)
    beginning, ending = lines[0], lines[-1]
    assert isinstance(beginning, Beginning) and isinstance(ending, Ending)
    assert beginning.models == ("toy",) and not beginning.payloads
    assert {place.name for place in beginning.actors} >= {"system", "registry", "device:cpu0", "queue:toy"}
    assert (ending.records, ending.missing) == (len(lines) - 2, 0)
    assert {"Generate", "RunSteps", "StepsDone"} <= {each.message for each in messages(lines)}
    recording = through_file(lines, tmp_path)
    assert recording.first == 1
    for part in (beginning, ending, list(recording.records[:3])):
        assert msgspec.json.decode(msgspec.json.encode(part), type=VERBS[0].answer) is not None
        assert show(part)


async def test_a_ring_that_was_overwritten_begins_later_and_misses_nothing_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_toy(recorder_entries=20) as (runtime, _):
        await warm_up(runtime)
        for _ in range(20):
            await complete(runtime)
        lines = await recorded_lines(runtime)
    passed = messages(lines)
    assert len(passed) == 20 and passed[0].number > 1
    ending = lines[-1]
    assert isinstance(ending, Ending)
    assert ending.records + ending.missing == passed[-1].number - min(line.number for line in lines[1:-1]) + 1  # type: ignore[union-attr]


async def test_who_does_not_ask_for_all_gets_the_latest(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy(recorder_entries=1000) as (runtime, _):
        await warm_up(runtime)
        for _ in range(20):
            await complete(runtime)
        lines = await recorded_lines(runtime)
        latest = await lines_of_record(runtime, ())
    assert len(lines) - 2 > LATEST
    assert latest[1:-1] == lines[-LATEST - 1 : -1]
    ending = latest[-1]
    assert isinstance(ending, Ending) and (ending.records, ending.missing) == (LATEST, 0)
    assert "record --all" in str(show(ending))


async def test_seconds_record_what_passes_from_now_on(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    async with open_toy(recorder_entries=1000) as (runtime, _):
        await warm_up(runtime)
        await complete(runtime)
        before = runtime.system.recording
        assert isinstance(before, Recorder)
        last = before.last
        lines: list[Line] = []

        async def record() -> None:
            lines.extend(await recorded_lines(runtime, "20"))
            assert trio.current_time() == began + 20

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(record)
            await trio.sleep(2)
            await complete(runtime)
        assert runtime.system.recording is before
    assert messages(lines)[0].number > last
    assert all(began <= message.ended <= began + 20 for message in messages(lines))
    assert [message.message for message in messages(lines)].count("Generate") == 1
    result = await trio.to_thread.run_sync(replay, through_file(lines, tmp_path))
    assert result.equal, "the queue has noted where it was"


async def test_where_nothing_is_recorded_it_is_for_as_long_as_it_is_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        with pytest.raises(InvalidRequest, match="record 10") as caught:
            await recorded_lines(runtime)
        assert caught.value.code == "not_recording"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(complete, runtime)
            lines = await recorded_lines(runtime, "10")
        assert any(message.message == "Generate" for message in messages(lines))
        assert runtime.system.recording is None


async def test_whoever_stops_it_leaves_nothing_turned_on(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy() as (runtime, _):
        with trio.move_on_after(1):
            await recorded_lines(runtime, "10", "--payloads")
        assert runtime.system.recording is None


async def test_a_recording_that_is_stopped_has_its_end(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy() as (runtime, _):
        subject, lines = Subject(runtime=runtime), list[Any]()

        async def keep() -> None:
            async for part in record(subject, ["600"]):
                lines.append(part)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
            await complete(runtime)
            async for _ in record(Subject(runtime=runtime), ["--stop"]):  # of another connection
                raise AssertionError
            await trio.testing.wait_all_tasks_blocked()
            assert lines and not isinstance(lines[-1], Ending)
            async for _ in record(subject, ["--stop"]):
                raise AssertionError
        assert isinstance(lines[-1], Ending) and lines[-1].records > 0
        assert trio.current_time() - began < 600
        assert runtime.system.recording is None and not subject.state["record"]


async def test_prompts_are_in_it_only_when_they_are_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    async with open_toy(recorder_entries=1000) as (runtime, _):
        await warm_up(runtime)
        files = []
        for words in (("20",), ("20", "--payloads"), ()):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(complete, runtime, SECRET)
                files.append(b"".join(write_lines(await recorded_lines(runtime, *words))))
    tokens = msgspec.json.encode(list(SECRET.encode()))[1:-1]
    assert [tokens in file for file in files] == [False, True, False]
    assert [b'"payload"' in file for file in files] == [False, True, False]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--payloads",), "record SECONDS --payloads"),
        (("soon",), "a number of seconds"),
        (("0",), "a number of seconds"),
        (("nan",), "a number of seconds"),
        (("3601",), "a number of seconds"),
        (("1", "2"), "a number of seconds"),
        (("1", "--all"), "a number of seconds"),
    ],
)
def test_words_that_make_no_sense_are_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        arguments_of(words)


async def test_a_long_ring_is_answered_in_pieces_with_a_turn_for_others_between_them() -> None:
    async with open_toy(recorder_entries=1000) as (runtime, _):
        recorder = runtime.system.recording
        assert isinstance(recorder, Recorder)
        for number in range(10 * BATCH):
            recorder.note("queue", 0.0, number, 1)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await recorded_lines(runtime)
            nursery.cancel_scope.cancel()
        assert turns >= 9, "between ten pieces"
