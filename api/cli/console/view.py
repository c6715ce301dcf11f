"""`tripower console view FILE`: step through a flight recording, or decide again what its queues decided."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.line_editor import read_line
from tripower.api.cli.terminal import is_terminal, note, tolerate_any_text
from tripower.runtime.introspection.playback import Playback
from tripower.runtime.introspection.recording import FlightRecording, read_recording
from tripower.runtime.kernel.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from tripower.actors.replay.rerun import Replay

HINT = "n next, p previous, g NUMBER, f TEXT only what has it (f alone: everything), q end"
WIDTH = 160


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 1 where a replay decides in another way. Raises `RecordingRefused`, `NotFound`, `InvalidRequest`."""
    tolerate_any_text()
    path = Path(arguments.file).expanduser()
    try:
        recording = read_recording(path)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {arguments.file}", code="no_such_file") from error
    except OSError as error:
        raise InvalidRequest(f"{arguments.file} cannot be read: {error.strerror}") from error
    if arguments.replay:
        return _replay(recording, as_json=arguments.json)
    playback = Playback(recording)
    if arguments.at is not None:
        _show(playback, playback.index_of(arguments.at), as_json=arguments.json)
    elif arguments.json:
        _print_json(summary_of(recording))
    elif is_terminal(sys.stdin) and is_terminal(sys.stdout):
        step(playback)
    else:
        _list(playback, arguments.filter)
    return exit_codes.OK


def summary_of(recording: FlightRecording) -> dict[str, Any]:
    """What a recording is, for programs."""
    beginning, ending = recording.beginning, recording.ending
    return {
        "version": beginning.version,
        "pid": beginning.pid,
        "at": beginning.at,
        "models": beginning.models,
        "payloads": beginning.payloads,
        "first": recording.first,
        "last": recording.records[-1].number if recording.records else 0,
        "messages": len(recording.messages),
        "notes": len(recording.notes),
        "missing": ending.missing,
        "seconds": ending.now - beginning.clock,
    }


def introduction(recording: FlightRecording) -> str:
    """The same in a line, and what is not there."""
    beginning, ending = recording.beginning, recording.ending
    missing = f", {ending.missing} missing" if ending.missing else ""
    return (
        f"process {beginning.pid}, tripower {beginning.version}, {beginning.at}: {len(recording.messages)} messages and "
        f"{len(recording.notes)} notes{missing}; begins at #{recording.first}"
    )


def step(playback: Playback) -> None:
    """A prompt until the person leaves."""
    note(introduction(playback.recording))
    if not playback.records:
        return
    note(HINT)
    index, text = 0, ""
    _show(playback, index)
    while (
        line := read_line(f"#{playback.records[index].number}{f' f {text}' if text else ''}> ", HINT, interrupted="help")
    ) is not None:
        word, _, rest = line.strip().partition(" ")
        target: int | None = index
        try:
            match word:
                case "q" | "quit" | "exit":
                    return
                case "" | "n":
                    target = playback.matching(text, index + 1)
                case "p":
                    target = playback.matching(text, index - 1, -1)
                case "g":
                    target = playback.index_of(number_of(rest))
                case "f":
                    text = rest.strip()
                    target = playback.matching(text, index)
                case _:
                    note(HINT)
                    continue
        except InvalidRequest as error:
            note(error.message)
            continue
        if target is None:
            note("there is no other one that way")
        else:
            index = target
            _show(playback, index)


def number_of(text: str) -> int:
    """The number of a record, as it was typed. Raises `InvalidRequest`."""
    digits = text.strip().removeprefix("#")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise InvalidRequest(f"g takes the number of a record, as in: g 12, not {text.strip()[:100]!r}")
    return int(digits)


def _list(playback: Playback, text: str) -> None:
    """A line for each record, for whoever reads it with other tools."""
    from tripower.api.console.flight import line_of

    print(introduction(playback.recording))
    index = playback.matching(text, 0)
    while index is not None:
        print(line_of(playback.records[index]))
        index = playback.matching(text, index + 1)


def _show(playback: Playback, index: int, *, as_json: bool = False) -> None:
    moment = playback.moment(index)
    if as_json:
        _print_json(moment)
        return
    from rich.console import Console

    from tripower.api.console.flight import page_of

    Console(width=None if is_terminal(sys.stdout) else WIDTH, markup=False, highlight=False, emoji=False).print(page_of(moment))


def _replay(recording: FlightRecording, *, as_json: bool) -> int:
    from tripower.actors.replay.rerun import replay

    result = replay(recording)
    if as_json:
        _print_json(
            {
                "equal": result.equal,
                "turns": result.turns,
                "skipped": result.skipped,
                "queues": result.queues,
                "differences": result.differences,
            }
        )
    else:
        for line in told(result):
            print(line)
    return exit_codes.REFUSED if result.differences else exit_codes.OK


def told(result: Replay) -> list[str]:
    """What came of a replay, for people."""
    if not result.turns and not result.differences:
        return [f"nothing could be decided again: {result.skipped} turns come before the first checkpoint of their queue"]
    lines = [
        f"{each.queue} decided in another way at #{each.number}: {each.what}\n  told: {each.told}\n  then: {each.recorded}\n  now:  {each.again}"
        for each in result.differences
    ]
    same = f"{result.turns} turns of {', '.join(result.queues)} were decided again"
    lines.append(f"{same}{', all in the same way' if result.equal else ''}; {result.skipped} were skipped")
    return lines


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value, enc_hook=_plain).decode())


def _plain(value: Any) -> Any:
    import attrs

    return attrs.asdict(value, recurse=False)
