"""Runs one command, and turns whatever goes wrong into one line that names the cure and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import NoReturn

from tripower.api.cli import exit_codes
from tripower.api.cli.arguments import HOMES, build_parser, parse
from tripower.api.cli.hangup import hold_hangups
from tripower.api.cli.terminal import discard_output, harmless, open_missing_streams


def start() -> NoReturn:
    """The process: `main`, and then its end, which no further Ctrl-C interrupts."""
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """The whole program; returns the exit code. Raises nothing but with `--debug`."""
    debug = False
    open_missing_streams()
    try:
        arguments = parse(argv)
        debug = arguments.debug or os.environ.get("TRIPOWER_LOG") == "debug"
        if arguments.command is None:
            build_parser().print_help()
            return exit_codes.OK
        with hold_hangups() if arguments.command == "serve" else nullcontext():  # before anything takes time
            code = int(import_module(f"tripower.api.cli.{HOMES[arguments.command]}").main(arguments))
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # argparse has said what there was to say
        return ended.code if isinstance(ended.code, int) else exit_codes.USAGE
    except BaseException as error:  # noqa: BLE001 - the outermost frame: nothing may become a traceback
        return _report(error, debug)


def _report(error: BaseException, debug: bool) -> int:
    """Say it on standard error, and the exit code that goes with it."""
    causes = list(_leaves(error))
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        discard_output()
        return exit_codes.BY_SIGNAL + signal.SIGPIPE
    interrupts = [cause for cause in causes if isinstance(cause, KeyboardInterrupt)]
    if interrupts:
        return exit_codes.BY_SIGNAL + getattr(interrupts[0], "signal_number", signal.SIGINT)
    if debug:
        import traceback

        traceback.print_exception(error)
    from tripower.api.cli.problems import describe

    text, code = describe(causes)
    _say(text)
    return code


def _say(text: str) -> None:
    try:
        sys.stdout.flush()  # what was streamed before the failure stays
    except OSError:
        discard_output()
    try:
        print(f"tripower: {harmless(text)}", file=sys.stderr)
    except OSError:
        discard_output()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
