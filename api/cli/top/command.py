"""`tripower top`: the live screen, or one look at it where there is no terminal."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.interrupts import Interrupts, run_until_interrupted
from tripower.api.cli.settings import configure_logs
from tripower.api.cli.terminal import is_terminal, tolerate_any_text
from tripower.api.console.client import open_console
from tripower.api.overview.figures import Overview


def main(arguments: argparse.Namespace) -> int:
    """Show a server until somebody leaves, or once. Returns the exit code: of one look 0 if the server says that nothing is wrong."""
    configure_logs(arguments, normally="silent")
    tolerate_any_text()
    if not arguments.json and _is_live():
        run_until_interrupted(partial(watch, arguments.target, interval=arguments.interval))
        return exit_codes.OK
    overview = run_until_interrupted(partial(ask, arguments.target))
    if arguments.json:
        print(msgspec.json.encode(overview).decode())
    else:
        _print(overview)
    return exit_codes.REFUSED if overview.status == "failing" else exit_codes.OK


def _is_live() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stdout) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


async def ask(target: str | None, interrupts: Interrupts | None = None) -> Overview:
    """One look. Blocks for half a second where nobody has looked lately. Raises `CannotAttach`, `ConsoleRefused` and `ServerGone`."""
    async with open_console(target) as console:
        overview: Overview = await console.call("overview", answer=Overview)
        return overview


async def watch(target: str | None, interrupts: Interrupts | None = None, *, interval: float) -> None:
    """The live screen, until somebody leaves. Raises what `ask` raises, with the terminal as it was before."""
    from rich.console import Console

    from tripower.api.cli.top.live import LiveScreen
    from tripower.api.cli.top.terminal import Terminal

    async with open_console(target) as console:
        terminal = Terminal(Console(file=sys.stdout, highlight=False), sys.stdin.fileno())
        await LiveScreen(console, terminal, interval=interval).run()


def _print(overview: Overview) -> None:
    from rich.console import Console

    from tripower.api.overview.sheet import Sheet

    Console(file=sys.stdout, highlight=False).print(Sheet(overview))
