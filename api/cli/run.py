"""`tripower run MODEL PROMPT`: one answer, streamed."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TextIO

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.answers import Question, Service, Summary, closing_line, options_of
from tripower.api.cli.interrupts import Interrupts, run_until_interrupted
from tripower.api.cli.settings import configure_logs, read_configuration, wait_without_spinning
from tripower.api.cli.terminal import is_terminal, note, tolerate_any_text, write
from tripower.runtime.configuration import Configuration


def main(arguments: argparse.Namespace) -> int:
    """Print the answer to standard output and the figures to standard error. Returns the exit code."""
    tolerate_any_text()
    configure_logs(arguments, normally="silent")
    wait_without_spinning()
    configuration = read_configuration(arguments, engine__backend=arguments.backend)
    prompt = read_prompt(arguments.prompt)
    if prompt is None:
        from tripower.api.cli import chat

        return chat.main(arguments)
    if not prompt:
        print("tripower: there is no prompt: give one, or pipe one in", file=sys.stderr)
        return exit_codes.USAGE
    question = question_of(arguments, prompt)
    summary, text = run_until_interrupted(partial(_ask, arguments, configuration, question))
    if arguments.json:
        print(msgspec.json.encode({"model": arguments.model, "text": text, **msgspec.structs.asdict(summary)}).decode())
    elif not arguments.quiet:
        note(closing_line(summary))
    return exit_codes.OK


def read_prompt(words: list[str]) -> str | None:
    """What was piped in, an empty line, what was typed. None when there is nothing and a person could still type. Blocks."""
    if not words and is_terminal(sys.stdin):
        return None
    piped = "" if words and not is_piped(sys.stdin) else sys.stdin.read().strip("\n")
    return "\n\n".join(part for part in (piped, " ".join(words)) if part)


def is_piped(stream: TextIO) -> bool:
    """Whether something may come: it is a pipe or a file, neither a terminal nor /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return False


def question_of(arguments: argparse.Namespace, prompt: str) -> Question:
    """The question that the command line asks."""
    options, timeout = options_of(arguments), arguments.timeout
    if arguments.raw:
        return Question(prompt=prompt, options=options, timeout=timeout)
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    return Question(messages=(*messages, {"role": "user", "content": prompt}), options=options, timeout=timeout)


@asynccontextmanager
async def open_service(arguments: argparse.Namespace, configuration: Configuration) -> AsyncIterator[Service]:
    """The model here, or the one behind `--url`."""
    if arguments.url:
        from tripower.api.cli.connection import open_client
        from tripower.api.cli.remote import RemoteService

        async with open_client(arguments.url, cacert=arguments.cacert) as client:
            yield RemoteService(client, arguments.model)
    else:
        from tripower.api.cli.local import open_local

        async with open_local(arguments.model, configuration, quiet=arguments.quiet, timeout=arguments.timeout) as service:
            yield service


async def _ask(
    arguments: argparse.Namespace, configuration: Configuration, question: Question, interrupts: Interrupts
) -> tuple[Summary, str]:
    pieces: list[str] = []

    def show(text: str) -> None:
        pieces.append(text)
        if not arguments.json:
            write(text)

    try:
        async with open_service(arguments, configuration) as service:
            summary = await service.answer(question, show)
    finally:
        text = "".join(pieces)
        if text and not arguments.json and not text.endswith("\n"):
            write("\n")
    return summary, text
