"""The live screen on a pseudo terminal: keys reach the server, and the terminal is as before whatever happens."""

from __future__ import annotations

import io
import os
import signal
import termios
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from rich.console import Console
from rich.text import Text

from tests.api.cli.ptys import PATIENCE, PseudoTerminal, pseudo_terminal
from tests.api.overview.overviews import overview
from tripower.api.cli.interrupts import Interrupted
from tripower.api.cli.top import live
from tripower.api.cli.top.live import LiveScreen
from tripower.api.cli.top.terminal import Terminal
from tripower.api.console.client import ConsoleRefused, ServerGone
from tripower.api.console.verb import Verb

ALTERNATE, NORMAL, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
DOWN = "\x1b[B"


class FakeServer:
    """Answers every look with the same overview, and remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Sequence[str]]] = []
        self.gone = trio.Event()
        self.tracing = 0
        self.silent = False

    async def call(self, verb: str, arguments: Sequence[str] = (), *, answer: Any = Any) -> Any:
        await trio.lowlevel.checkpoint()
        if self.silent:
            await trio.sleep_forever()
        if self.gone.is_set():
            raise ServerGone("process 4711 has ended")
        if verb == "overview":
            return overview()
        self.calls.append((verb, arguments))
        if len(self.calls) > 1:
            raise ConsoleRefused("no request request-00 waits or runs", code="request_not_found")

    @asynccontextmanager
    async def stream(self, verb: str, arguments: Sequence[str] = (), *, answer: Any = Any) -> AsyncIterator[AsyncIterator[Any]]:
        async def items() -> AsyncIterator[str]:
            for number in range(3):
                yield f"{verb} {arguments[0]} {number}"
            await trio.sleep_forever()

        self.tracing += 1
        try:
            yield items()
        finally:
            self.tracing -= 1


@contextmanager
def open_terminal(pseudo: PseudoTerminal) -> Iterator[Terminal]:
    with io.TextIOWrapper(io.FileIO(pseudo.slave, "w", closefd=False), write_through=True) as out:
        console = Console(file=out, force_terminal=True, _environ={"TERM": "xterm-256color"})
        yield Terminal(console, pseudo.slave)


@asynccontextmanager
async def running(pseudo: PseudoTerminal, server: FakeServer) -> AsyncIterator[LiveScreen]:
    """A live screen that has drawn its first figures, and has ended by itself at the end of the block."""
    with trio.fail_after(PATIENCE), open_terminal(pseudo) as terminal:
        async with trio.open_nursery() as nursery:
            screen = LiveScreen(server, terminal, interval=0.05)
            nursery.start_soon(screen.run)
            await saw(pseudo, "tokens/s")
            yield screen


async def saw(pseudo: PseudoTerminal, *texts: str) -> str:
    return await trio.to_thread.run_sync(pseudo.wait_for, *texts)


@pytest.fixture
def pseudo() -> Iterator[PseudoTerminal]:
    with pseudo_terminal() as terminal:
        yield terminal


@pytest.fixture(autouse=True)
def trace_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stream(subject: Any, words: Any) -> AsyncIterator[str]:
        yield ""

    verb = Verb(name="trace", summary="", stream=stream, answer=str, show=lambda item: Text(f"<{item}>"))
    monkeypatch.setattr(live, "find_verb", lambda name: verb)


def test_the_terminal_is_taken_and_given_back(pseudo: PseudoTerminal) -> None:
    before = pseudo.attributes()
    with open_terminal(pseudo) as terminal, terminal:
        during = pseudo.attributes()
        assert not during[3] & (termios.ICANON | termios.ECHO) and not during[0] & termios.IXON
        assert during[3] & termios.ISIG, "Ctrl-C and Ctrl-Z stay signals"
        terminal.draw(Text("drawn"))
        assert ALTERNATE in pseudo.wait_for("drawn")
    pseudo.wait_for(NORMAL, SHOW_CURSOR)
    assert pseudo.attributes() == before


def test_the_terminal_is_given_back_after_a_failure(pseudo: PseudoTerminal) -> None:
    before = pseudo.attributes()
    with pytest.raises(ZeroDivisionError), open_terminal(pseudo) as terminal, terminal:
        raise ZeroDivisionError
    pseudo.wait_for(NORMAL, SHOW_CURSOR)
    assert pseudo.attributes() == before


def test_what_nobody_took_is_not_given_back(pseudo: PseudoTerminal) -> None:
    with open_terminal(pseudo) as terminal:
        terminal.give_back()
        terminal.renew()
        terminal.draw(Text("never"))
        with terminal:
            terminal.give_back()
            terminal.give_back()
    assert "never" not in pseudo.written


async def test_q_leaves(pseudo: PseudoTerminal) -> None:
    before = pseudo.attributes()
    async with running(pseudo, FakeServer()):
        pseudo.type("q")
    await saw(pseudo, NORMAL, SHOW_CURSOR)
    assert pseudo.attributes() == before


async def test_a_request_is_selected_cancelled_and_its_fate_told(pseudo: PseudoTerminal) -> None:
    server = FakeServer()
    async with running(pseudo, server):
        pseudo.type(DOWN + "c")
        await saw(pseudo, "cancel request-00 of smollm2")
        pseudo.type("y")
        await saw(pseudo, "request-00 is cancelled")
        pseudo.type("cy")
        await saw(pseudo, "no request request-00 waits or runs")
        pseudo.type("q")
    assert server.calls == [("cancel", ("request-00",))] * 2


async def test_a_trace_is_followed_until_it_is_left(pseudo: PseudoTerminal) -> None:
    server = FakeServer()
    async with running(pseudo, server):
        pseudo.type(DOWN + "t")
        await saw(pseudo, "<trace request-00 2>", "trace of request-00")
        assert server.tracing == 1
        pseudo.type("\x1b")
        await saw(pseudo, "q quit")
        while server.tracing:
            await trio.lowlevel.checkpoint()
        pseudo.type("q")


async def test_a_server_that_ends_ends_the_screen_and_gives_the_terminal_back(pseudo: PseudoTerminal) -> None:
    before = pseudo.attributes()
    server = FakeServer()
    with pytest.raises(BaseExceptionGroup) as raised:
        async with running(pseudo, server):
            server.gone.set()
    assert raised.group_contains(ServerGone)
    assert pseudo.attributes() == before


async def test_a_new_size_is_filled(pseudo: PseudoTerminal) -> None:
    async with running(pseudo, FakeServer()):
        pseudo.resize(150, 40)
        os.kill(os.getpid(), signal.SIGWINCH)
        await saw(pseudo, "SOCKET", "PROMPT/S")
        pseudo.type("q")


async def test_news_makes_room_for_the_keys_after_a_while(pseudo: PseudoTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "NOTE_SECONDS", 0.1)
    async with running(pseudo, FakeServer()):
        pseudo.type("c")
        await saw(pseudo, "select a request first")
        await saw(pseudo, "q quit")
        pseudo.type("q")


async def test_a_server_that_does_not_answer_is_noticed_and_can_be_left(
    pseudo: PseudoTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SILENCE_SECONDS", 0.1)
    server = FakeServer()
    async with running(pseudo, server):
        server.silent = True
        await saw(pseudo, "no answer for")
        pseudo.type("q")


async def test_ctrl_z_gives_the_terminal_back_until_the_shell_goes_on(
    pseudo: PseudoTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pseudo.attributes()
    stops: list[tuple[int, int, bool]] = []
    server = FakeServer()

    def stop(process: int, number: int) -> None:
        stops.append((process, number, pseudo.attributes() == before and not server.tracing))

    async with running(pseudo, server):
        pseudo.type(DOWN + "t")
        await saw(pseudo, "trace of request-00")
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", stop)
            signal.raise_signal(signal.SIGTSTP)
            await saw(pseudo, NORMAL, ALTERNATE, "which has ended")
        signal.raise_signal(signal.SIGCONT)
        await saw(pseudo, ALTERNATE)
        assert pseudo.attributes() != before
        pseudo.type("qq")
    assert stops == [(os.getpid(), signal.SIGSTOP, True)]
    assert pseudo.attributes() == before


async def test_a_hang_up_ends_the_screen(pseudo: PseudoTerminal) -> None:
    before = pseudo.attributes()
    with pytest.raises(BaseExceptionGroup) as raised:
        async with running(pseudo, FakeServer()):
            os.kill(os.getpid(), signal.SIGHUP)
    assert raised.group_contains(Interrupted)
    assert pseudo.attributes() == before
