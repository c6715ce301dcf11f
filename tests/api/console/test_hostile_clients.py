"""Clients that mean harm, or have bad luck: the server and the command say one line about it and go on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.api.console.consoles import call, raw_client, serving
from tripower.api.cli.console.screen import Screen, harmless
from tripower.api.cli.line_editor import read_line
from tripower.api.cli.program import _say
from tripower.api.cli.terminal import note
from tripower.api.console import places
from tripower.api.console.client import ConsoleRefused, open_console
from tripower.api.console.connection import CALLS_MAX
from tripower.api.console.finding import CannotAttach, attach
from tripower.api.console.listening import listen
from tripower.api.console.outgoing import OUTGOING_BYTES_MAX
from tripower.api.console.places import runtime_directory, sockets
from tripower.api.console.protocol import Hello
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest, NotFound

ANSWER_BYTES = 1 << 18
HELLO = Hello(version="0", pid=1, verbs=())


class Big:
    """A verb with a long answer, which counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.verb = Verb(name="big", summary="", run=self._run)

    async def _run(self, subject: Subject, words: Sequence[str]) -> str:
        self.asked += 1
        return "x" * ANSWER_BYTES


async def test_answers_that_nobody_reads_are_no_more_than_the_calls_that_may_be_open(tmp_path: Path) -> None:
    big = Big()
    async with serving(tmp_path, big.verb) as served, raw_client(served.path) as client:
        await client.send(*(call(number, "big") for number in range(1, 10 * CALLS_MAX)))
        await wait_all_tasks_blocked()
        assert served.statistics().open_calls <= CALLS_MAX
        assert big.asked <= CALLS_MAX + 2 * OUTGOING_BYTES_MAX // ANSWER_BYTES


async def test_a_number_can_be_used_again_as_soon_as_it_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, raw_client(served.path) as client:
        for _ in range(50):
            await client.send(call(1, "echo"))
            assert (await client.frame())["type"] == "result"


async def test_an_error_whose_words_are_no_text_is_an_answer(tmp_path: Path) -> None:
    async def fail(subject: Subject, words: Sequence[str]) -> None:
        raise NotFound("there is no file \udcff")

    verb = Verb(name="fail", summary="", run=fail)
    async with serving(tmp_path, verb) as served, open_console(str(served.path)) as console:
        with pytest.raises(ConsoleRefused, match="there is no file \\?"):
            await console.call("fail")
        assert await console.call("echo", ["still there"]) == ["still there"]


# The command.


@pytest.mark.parametrize("columns", ["abc", "0", "-4", "1" * 40, ""])
def test_a_width_that_is_none_is_not_heeded(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Screen(as_json=False).show("health", msgspec.Raw(b'{"status": "ok"}'), HELLO)
    assert capsys.readouterr().out == "ok\n"


def test_what_programs_get_controls_no_terminal_either(capsys: pytest.CaptureFixture[str]) -> None:
    said = "\x1b[31m\x9b31m\x7f\r\b é \U0001f600"
    Screen(as_json=True).show("health", msgspec.Raw(msgspec.json.encode(said)), HELLO)
    out = capsys.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    assert json.loads(out) == said


def test_a_refusal_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(as_json=False).refuse(InvalidRequest("no \x1b[2J\x9b2J such\r thing"))
    assert capsys.readouterr().err == "tripower: no \ufffd[2J\ufffd2J such\ufffd thing\n"


def test_a_carriage_return_is_harmful_in_the_short_way_of_writing_it_too() -> None:
    assert harmless(msgspec.Raw(b'"a\\rb\\bc"')) == msgspec.Raw('"a\ufffdb\ufffdc"'.encode())


async def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, open_console(str(served.path)) as console:
        with pytest.raises(ConsoleRefused, match="no text"):
            await console.call("echo", ["\udcff"])
        assert await console.call("echo", ["still there"]) == ["still there"]


@pytest.mark.parametrize("target", ["", "x" * 5000, "~nobody-of-this-name/s", "/", __file__, "9" * 5000])
async def test_a_target_that_cannot_be_a_console_is_named(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(CannotAttach) as raised:
        await attach(target)
    assert "has ended" not in raised.value.message
    assert len(raised.value.message) < 400


def test_a_home_that_nobody_has_is_a_folder_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", "~nobody-of-this-name/run")
    assert runtime_directory().name == "run"
    with pytest.raises(InvalidConfiguration):
        listen("~nobody-of-this-name/s")


def test_nothing_but_sockets_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "4194305.sock").write_text("somebody's notes")  # no process has this number
    opened = listen()
    opened.socket.close()
    opened.remove()
    assert os.listdir(tmp_path) == ["4194305.sock"]


class InterruptedPipe:
    """Standard input that is a pipe, at which the person has enough."""

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        signal.raise_signal(signal.SIGINT)
        return "ps\n"


def test_ctrl_c_ends_waiting_for_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", InterruptedPipe())
    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # as Trio's, which only takes note of it
    try:
        with pytest.raises(KeyboardInterrupt):
            read_line("", "")
    finally:
        signal.signal(signal.SIGINT, before)


# Whoever pretends to be a server.


@asynccontextmanager
async def pretending(folder: Path, said: bytes) -> AsyncIterator[Path]:
    """Somebody who says this to whoever attaches."""
    with socket.socket(socket.AF_UNIX) as plain:
        plain.bind(str(folder / "77.sock"))
        plain.listen(1)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(plain))

        async def say(stream: trio.SocketStream) -> None:
            await stream.send_all(said)
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, say, [listener])
            yield folder / "77.sock"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("field", ["url", "version", "models"])
async def test_who_greets_with_control_characters_is_no_console(field: str, tmp_path: Path) -> None:
    value: object = "\x1b]0;a title\x07"
    hello = {"type": "hello", "version": "1", "pid": 1, "verbs": []} | {field: [value] if field == "models" else value}
    async with pretending(tmp_path, json.dumps(hello).encode() + b"\n") as path:
        with pytest.raises(CannotAttach, match="no console"):
            await attach(str(path))


def test_nothing_that_ends_a_command_controls_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _say("it said \x1b[2J\x9b2J")
    note("and \x1b]0;a title\x07")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", capsys.readouterr().err)


async def test_a_process_that_accepts_nobody_is_said_not_to_answer(tmp_path: Path) -> None:
    path = tmp_path / "77.sock"
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as waiting:
        listening.bind(str(path))
        listening.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                early = waiting.enter_context(socket.socket(socket.AF_UNIX))
                early.setblocking(False)
                early.connect(str(path))
        with pytest.raises(CannotAttach) as raised:
            await attach(str(path))
        assert raised.value.code == "no_answer"


def test_directories_that_others_made_in_our_name_are_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tripower").mkdir()
    (tmp_path / "tripower" / "77.sock").touch()
    unnamed, named = {"XDG_RUNTIME_DIR": str(tmp_path)}, {"TRIPOWER_RUNTIME_DIR": str(tmp_path / "tripower")}
    assert len(sockets(unnamed)) == len(sockets(named)) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    monkeypatch.setattr(places, "ROOT", -1)
    assert sockets(unnamed) == [] and len(sockets(named)) == 1
