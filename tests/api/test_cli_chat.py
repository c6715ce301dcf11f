"""`tripower chat`: what is kept of a conversation, what is not, and how it is stopped."""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.api.children import COMMAND, PATIENCE, environment, tripower
from tripower.api.cli.answers import Question, Show, Summary
from tripower.api.cli.chat import Conversation
from tripower.api.cli.interrupts import Interrupted, Interrupts, run_until_interrupted, until_interrupted
from tripower.runtime.kernel import InvalidRequest, Overloaded, TripowerError

ARGUMENTS = argparse.Namespace(
    system="be brief", timeout=None, quiet=True, max_tokens=None, temperature=None, top_p=None, top_k=None, min_p=None, seed=1,
    stop=None,
)  # fmt: skip
SYSTEM = {"role": "system", "content": "be brief"}


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


class Scripted:
    """Answers what it is told to: a text, a text and then an error, or a text and then nothing for ever."""

    model = "scripted"

    def __init__(self, *script: tuple[str, TripowerError | str | None]) -> None:
        self.script = list(script)
        self.asked: list[Question] = []
        self.stalled = trio.Event()

    async def answer(self, question: Question, show: Show) -> Summary:
        self.asked.append(question)
        text, end = self.script.pop(0)
        show(text)
        if isinstance(end, TripowerError):
            raise end
        if end == "stall":
            self.stalled.set()
            await trio.sleep_forever()
        return Summary(finish_reason="stop")


@pytest.fixture
def interrupts() -> Interrupts:
    return Interrupts(trio.CancelScope())


async def test_a_turn_that_is_answered_is_kept_and_sent_again(interrupts: Interrupts) -> None:
    service = Scripted(("hello", None), ("again", None))
    conversation = Conversation(service, ARGUMENTS)
    await conversation.say("one", interrupts)
    await conversation.say("two", interrupts)
    assert service.asked[1].messages == (SYSTEM, said("user", "one"), said("assistant", "hello"), said("user", "two"))
    assert service.asked[1].options == {"seed": 1}
    conversation.clear()
    assert conversation.messages == [SYSTEM]


async def test_a_turn_that_fails_leaves_no_trace(interrupts: Interrupts, capsys: pytest.CaptureFixture[str]) -> None:
    service = Scripted(
        ("hello", None), ("half an ans", Overloaded("no room")), ("", InvalidRequest("long", code="context_length_exceeded"))
    )
    conversation = Conversation(service, ARGUMENTS)
    await conversation.say("one", interrupts)
    await conversation.say("two", interrupts)
    await conversation.say("three", interrupts)
    assert conversation.messages == [SYSTEM, said("user", "one"), said("assistant", "hello")]
    assert conversation.failures == 2
    shown = capsys.readouterr()
    assert "half an ans\n" in shown.out
    assert shown.err == "tripower: no room\ntripower: long; /clear starts a new conversation\n"


@pytest.mark.parametrize(("text", "kept"), [("so far", [said("user", "one"), said("assistant", "so far")]), ("", [])])
async def test_an_answer_that_is_stopped_is_kept_as_far_as_it_went(text: str, kept: list[dict[str, str]]) -> None:
    service = Scripted((text, "stall"))
    conversation = Conversation(service, ARGUMENTS)

    async def interrupt() -> None:
        await service.stalled.wait()
        os.kill(os.getpid(), signal.SIGINT)

    async def work(interrupts: Interrupts) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            await conversation.say("one", interrupts)
        return "the rest goes on"

    assert await until_interrupted(work) == "the rest goes on"
    assert conversation.messages == [SYSTEM, *kept]


def test_a_signal_outside_of_an_answer_ends_everything() -> None:
    cleaned: list[str] = []

    async def work(interrupts: Interrupts) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            cleaned.append("up")

    with pytest.raises(Interrupted) as caught:
        run_until_interrupted(work)
    assert caught.value.signal_number == signal.SIGTERM
    assert cleaned == ["up"]


def test_what_the_work_raises_comes_through_as_it_is() -> None:
    async def work(interrupts: Interrupts) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_until_interrupted(work)


def test_lines_that_are_piped_in_are_turns(tmp_path: Path) -> None:
    lines = "hello\n\n/help\n/nonsense\n/clear\nhello\n/bye\nnever read\n"
    finished = tripower(tmp_path, "chat", "toy", "--seed", "3", "--max-tokens", "9", text=lines)
    assert finished.returncode == 0
    first, second = finished.stdout.splitlines()
    assert first == second, "after /clear the same question gets the same answer"
    assert "/bye    end" in finished.stderr
    assert "/nonsense is nothing" in finished.stderr
    assert "first token after" in finished.stderr
    assert ">>>" not in finished.stdout


def test_a_turn_that_fails_in_a_pipe_shows_in_the_exit_code(tmp_path: Path) -> None:
    finished = tripower(tmp_path, "chat", "toy", "--set", "engine.context=20", text="hello\n" + "long " * 20 + "\n")
    assert finished.returncode == 1
    assert "/clear starts a new conversation" in finished.stderr


TAKE_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
"""The first terminal that the leader of a session opens becomes its own: only then does Ctrl-C reach it."""


class Screen:
    """A child on a terminal of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._terminal, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *COMMAND, *arguments],
            env=environment(home, TERM="xterm"),
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str, *, meanwhile: str = "") -> str:
        """What came up to the first match. `meanwhile` is typed again and again until then."""
        tries = 0
        while (match := re.search(pattern, self.seen)) is None:
            readable, _, _ = select.select([self._terminal], [], [], PATIENCE if not meanwhile else 0.5)
            if readable:
                self.seen += os.read(self._terminal, 4096).decode(errors="replace")
                continue
            tries += 1
            assert meanwhile and tries < 100, f"{pattern!r} did not come: {self.seen!r}"
            self.type(meanwhile)
        found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return found

    def close(self) -> int:
        code = self.process.wait(PATIENCE)
        os.close(self._terminal)
        return code


def test_at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "chat", "toy:100000", "--seed", "7")
    try:
        screen.wait_for("Ctrl-D ends")
        screen.wait_for(">>> ")
        screen.type("half a line\x03")
        # Python misses a signal that comes just before it begins to wait for a key, until the next one comes.
        screen.wait_for("Ctrl-D ends", meanwhile="\x03")
        screen.wait_for(">>> ")
        screen.type("hello\n")
        screen.wait_for(r"hello\s+[a-z ]{2}")
        screen.type("\x03")
        screen.wait_for("stopped")
        screen.wait_for(">>> ")
        screen.type("/help\n")
        screen.wait_for("/clear  forget")
        screen.wait_for(">>> ")
        screen.type("\x04")
        assert screen.close() == 0
    finally:
        screen.process.kill()
