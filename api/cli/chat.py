"""`tripower chat MODEL`: a conversation.

While an answer runs, Ctrl-C is a cancellation of that answer and of nothing else.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from tripower.api.cli import exit_codes
from tripower.api.cli.answers import Question, Service, Summary, closing_line, options_of
from tripower.api.cli.interrupts import Interrupts, run_until_interrupted
from tripower.api.cli.line_editor import read_line
from tripower.api.cli.problems import describe
from tripower.api.cli.run import open_service
from tripower.api.cli.settings import configure_logs, read_configuration, wait_without_spinning
from tripower.api.cli.terminal import is_terminal, note, tolerate_any_text, write
from tripower.runtime.configuration import Configuration
from tripower.runtime.kernel import TripowerError

PROMPT = ">>> "
HELP = """/clear  forget the conversation
/bye    end, as does Ctrl-D
Ctrl-C  stop the answer that is being written"""
GREETING = "/help lists what can be typed, Ctrl-D ends"


def main(arguments: argparse.Namespace) -> int:
    """Hold the conversation. Returns the exit code."""
    tolerate_any_text()
    configure_logs(arguments, normally="silent")
    wait_without_spinning()
    configuration = read_configuration(arguments, engine__backend=arguments.backend)
    options_of(arguments)  # what cannot be asked is refused before a model is loaded
    if is_terminal(sys.stdin):
        import readline  # noqa: F401 - importing it gives `input` a line editor with a history
    return run_until_interrupted(partial(_chat, arguments, configuration))


async def _chat(arguments: argparse.Namespace, configuration: Configuration, interrupts: Interrupts) -> int:
    async with open_service(arguments, configuration) as service:
        conversation = Conversation(service, arguments)
        if is_terminal(sys.stdin):
            note(f"{service.model}: {GREETING}")
        while (line := read_line(PROMPT, GREETING)) is not None:
            match line.strip():
                case "":
                    continue
                case "/bye" | "/exit" | "/quit":
                    break
                case "/clear":
                    conversation.clear()
                    note("forgotten")
                case "/help" | "/?":
                    note(HELP)
                case command if command.startswith("/") and " " not in command:
                    note(f"{command} is nothing that can be typed here\n{HELP}")
                case text:
                    await conversation.say(text, interrupts)
    return exit_codes.REFUSED if conversation.failures and not is_terminal(sys.stdin) else exit_codes.OK


class Conversation:
    """What has been said, and what is said next."""

    def __init__(self, service: Service, arguments: argparse.Namespace) -> None:
        self._service = service
        self._options = options_of(arguments)
        self._timeout = arguments.timeout
        self._quiet = arguments.quiet
        self._beginning = [{"role": "system", "content": arguments.system}] if arguments.system else []
        self.messages = list(self._beginning)
        self.failures = 0

    def clear(self) -> None:
        """Back to the beginning."""
        self.messages = list(self._beginning)

    async def say(self, text: str, interrupts: Interrupts) -> None:
        """One turn. It is kept when it is answered, also when Ctrl-C cut the answer short; a turn that fails leaves no trace."""
        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            write(piece)

        self.messages.append({"role": "user", "content": text})
        summary: Summary | None = None
        error: TripowerError | None = None
        with interrupts.only_this():
            try:
                question = Question(messages=tuple(self.messages), options=self._options, timeout=self._timeout)
                summary = await self._service.answer(question, show)
            except TripowerError as raised:
                error = raised
        answer = "".join(pieces)
        if answer and not answer.endswith("\n"):
            write("\n")
        if error is None and answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()
        self._close(summary, error)

    def _close(self, summary: Summary | None, error: TripowerError | None) -> None:
        if error is not None:
            self.failures += 1
            cure = "; /clear starts a new conversation" if error.code == "context_length_exceeded" else ""
            print(f"tripower: {describe([error])[0]}{cure}", file=sys.stderr)
        elif summary is None:
            note("stopped")
        elif not self._quiet:
            note(closing_line(summary))
