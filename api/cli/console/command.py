"""`tripower console`: attach to a running process and look inside.

Three ways in, one way through: verbs of `-c`, lines that are piped in, or a prompt. Ctrl-C at the prompt ends what is running there and
nothing else; everywhere else it ends the command.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from functools import partial

import trio

from tripower.api.cli import exit_codes
from tripower.api.cli.console.screen import Screen, print_error, tells_of_failure
from tripower.api.cli.interrupts import Interrupts, run_until_interrupted
from tripower.api.cli.line_editor import complete_with, history, read_line
from tripower.api.cli.terminal import is_terminal, note, tolerate_any_text
from tripower.api.console.client import ConsoleClient, ConsoleRefused, ServerGone, open_console
from tripower.api.console.finding import CannotAttach
from tripower.runtime.kernel.errors import InvalidRequest

PROMPT = "tripower> "
HINT = "`help` lists what can be typed, Ctrl-D ends"
LEAVE = ("quit", "exit")
HISTORY = "console_history"
NOTE_SECONDS = 1.0
"""Of waiting for an answer without a word."""


def main(arguments: argparse.Namespace) -> int:
    """Attach, and answer what is asked. Returns the exit code: 1 when a verb was refused or failed, but for a prompt."""
    tolerate_any_text()
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")
    try:
        return run_until_interrupted(partial(attend, arguments))
    except (CannotAttach, ServerGone) as error:
        if arguments.json:
            print_error(error)
        raise


async def attend(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Raises `CannotAttach` and `ServerGone`."""
    async with open_console(arguments.target) as console:
        session = Session(console, Screen(as_json=arguments.json))
        if arguments.verbs:
            for line in arguments.verbs:
                await session.answer(line)
        elif is_terminal(sys.stdin):
            await converse(session, console, interrupts)
            return exit_codes.OK
        else:
            while (line := read_line("", "")) is not None:
                if not await session.answer(line):
                    break
    return exit_codes.REFUSED if session.failures else exit_codes.OK


async def converse(session: Session, console: ConsoleClient, interrupts: Interrupts) -> None:
    """A prompt until the person leaves. Raises `ServerGone`."""
    from tripower.api.cli.console.completer import Completer  # nobody needs them who asks for one verb
    from tripower.api.cli.console.python_prompt import VERB as PYTHON
    from tripower.api.cli.console.python_prompt import converse_in_python
    from tripower.runtime.store.home import home_directory

    hello = console.hello
    note(f"attached to process {hello.pid}, tripower {hello.version}{f' at {hello.url}' if hello.url else ''}: {HINT}")
    with ExitStack() as editing:
        editing.enter_context(history(home_directory() / HISTORY))
        completer = editing.enter_context(Completer(console.path, LEAVE))
        complete_with(completer.complete)
        going = True
        while going and (line := read_line(PROMPT, HINT)) is not None:
            if line.strip() == PYTHON and PYTHON in hello.raw:
                await converse_in_python(console, session.screen, interrupts, completer.complete)
                continue
            with interrupts.only_this() as scope:
                going = await session.answer(line)
            if scope.cancelled_caught:
                note("stopped")
                await console.settle()  # the next line holds the loop
            console.check()


class Session:
    """What is asked at one console, one thing after the other."""

    def __init__(self, console: ConsoleClient, screen: Screen) -> None:
        self._console = console
        self.screen = screen
        self.failures = 0
        """Verbs that were refused, or whose answer tells of a failure."""

    async def answer(self, line: str) -> bool:
        """Ask what a line says and show the answer. False when it says to leave. Blocks. Raises `ServerGone`."""
        try:
            verb, words = self.parsed(line)
            if verb in LEAVE and not words:
                return False
            if verb:
                await self._ask(verb, words)
        except (ConsoleRefused, InvalidRequest) as error:
            self.failures += 1
            self.screen.refuse(error)
        return True

    async def _ask(self, verb: str, words: list[str]) -> None:
        hello = self._console.hello
        async with self._console.open_call(verb, words) as call:
            if verb not in hello.streams:
                with trio.move_on_after(NOTE_SECONDS) as waited:
                    await call.wait()
                if waited.cancelled_caught:
                    note(f"{verb} takes its time: still waiting")
            async for item in call:
                self.screen.show(verb, item, hello)
            if verb not in hello.streams:
                self.screen.show(verb, call.result, hello)
                self.failures += tells_of_failure(verb, call.result, hello)

    def parsed(self, line: str) -> tuple[str, list[str]]:
        """The verb of a line, empty where there is none, and the words after it. Raises `InvalidRequest` for an open quote."""
        verb, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if verb in self._console.hello.raw:
            return verb, [rest] if rest else []
        if "'" not in rest and '"' not in rest and "\\" not in rest:
            return verb, rest.split()
        import shlex

        try:
            return verb, shlex.split(rest)
        except ValueError as error:
            raise InvalidRequest(f"the line cannot be read: {error}") from error
