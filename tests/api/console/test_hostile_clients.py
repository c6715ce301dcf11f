"""Clients that mean harm, or have bad luck: the server and the command say one line about it and go on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from tests.api.console.consoles import call, raw_client, serving
from tripower.api.cli.console_screen import Screen, harmless
from tripower.api.console.client import ConsoleRefused, open_console
from tripower.api.console.connection import CALLS_MAX
from tripower.api.console.finding import CannotAttach, attach
from tripower.api.console.listening import listen
from tripower.api.console.outgoing import OUTGOING_BYTES_MAX
from tripower.api.console.places import runtime_directory
from tripower.api.console.protocol import Hello
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest

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
async def test_a_target_that_cannot_be_a_console_is_named(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
