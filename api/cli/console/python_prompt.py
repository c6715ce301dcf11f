"""`py` alone at the console's prompt: line after line of Python in the attached process, until Ctrl-D."""

from __future__ import annotations

from tripower.api.cli.console.screen import Screen
from tripower.api.cli.interrupts import Interrupts
from tripower.api.cli.line_editor import Complete, complete_with, read_line
from tripower.api.cli.terminal import note
from tripower.api.console.client import ConsoleClient, ConsoleRefused, decoded
from tripower.api.console.repl.answer import LineAnswer

VERB = "py"
PROMPT, CONTINUATION = ">>> ", "... "
HINT = "Ctrl-D goes back to the console"
INTERRUPTED = "\x03"


async def converse_in_python(console: ConsoleClient, screen: Screen, interrupts: Interrupts, complete: Complete) -> None:
    """Ask for lines and show what comes of them. An indented block ends with an empty line. Raises `ServerGone`.

    `complete` is the console's own completion: for names here, and for verbs again afterwards.
    """
    complete_with(lambda words: complete([VERB, words[-1]]))
    try:
        await _converse(console, screen, interrupts)
    finally:
        complete_with(complete)


async def _converse(console: ConsoleClient, screen: Screen, interrupts: Interrupts) -> None:
    note(f"Python in process {console.hello.pid}, with await; there are runtime, system, actors, subject and trio. {HINT}")
    lines: list[str] = []
    while (line := read_line(CONTINUATION if lines else PROMPT, HINT, interrupted=INTERRUPTED)) is not None:
        lines.append(line)
        if line == INTERRUPTED or not "".join(lines).strip():
            lines.clear()
            continue
        more = False
        try:
            with interrupts.only_this() as scope:
                more = await _run("\n".join(lines), console, screen)
        except ConsoleRefused as refused:
            screen.refuse(refused)
        if scope.cancelled_caught:
            note("stopped")
            await console.settle()  # the next line holds the loop
        if not more:
            lines.clear()


async def _run(source: str, console: ConsoleClient, screen: Screen) -> bool:
    """Run what has been typed and show the answer. True when more lines must follow."""
    async with console.open_call(VERB, [f"--more {source}"]) as call:
        async for _ in call:
            pass
    answer = decoded(call.result, LineAnswer, console.hello)
    if answer != LineAnswer() and not answer.incomplete:
        screen.show(VERB, call.result, console.hello)
    return bool(answer.incomplete)
