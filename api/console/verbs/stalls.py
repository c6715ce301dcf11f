"""`stalls`: who held the loop, for how long, and at which line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from tripower.api.console.text import duration
from tripower.api.console.verb import Subject, Verb
from tripower.runtime.introspection.stalls import SECONDS_MIN, THRESHOLD_SECONDS, Stall, StallReport
from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MILLISECONDS_MAX = 60_000
SHOWN_MAX = 10


async def stalls(subject: Subject, words: Sequence[str]) -> StallReport:
    """What has been seen, after the watch was turned on or off, or cleared, as the words say. Raises `InvalidRequest`."""
    await trio.lowlevel.checkpoint()
    watch = subject.runtime.stalls
    match [*words]:
        case []:
            pass
        case ["on"]:
            watch.turn_on()
        case ["on", text]:
            watch.turn_on(_milliseconds(text) / 1000)
        case ["off"]:
            watch.turn_off()
        case ["clear"]:
            watch.clear()
        case _:
            raise InvalidRequest("`stalls` takes nothing, on [MS], off or clear")
    return watch.report()


def _milliseconds(text: str) -> int:
    least = round(SECONDS_MIN * 1000)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and least <= int(text) <= MILLISECONDS_MAX):
        raise InvalidRequest(f"a threshold is a whole number of milliseconds from {least} to {MILLISECONDS_MAX}")
    return int(text)


def show(report: StallReport) -> RenderableType:
    """Lines by the time that they took, then the last ones."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    threshold = duration(report.threshold_seconds)
    state = (
        f"on, for steps longer than {threshold}" if report.on else f"off: `stalls on` looks for steps longer than {threshold}"
    )
    shown: list[RenderableType] = [Text(f"the watch is {state}", style="bold")]
    if report.steps:
        longest = f", the longest {duration(report.longest_seconds)}" if report.stalls else ""
        shown.append(Text(f"{report.stalls} of {report.steps} steps were too long{longest}"))
    if report.lines:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("COUNT", "TOGETHER"):
            table.add_column(title, justify="right")
        table.add_column("LINE")
        for line in report.lines[:SHOWN_MAX]:
            table.add_row(str(line.count), duration(line.seconds), Text(line.place or "not seen"))
        shown.append(table)
    shown += [_told(stall) for stall in report.recent[:SHOWN_MAX]]
    return Group(*shown)


def _told(stall: Stall) -> Text:
    from rich.text import Text

    text = Text(f"{duration(stall.ago)} ago: {stall.task} held the loop for {duration(stall.seconds)}")
    if stall.place:
        text.append(f"\n  {'at' if stall.seen else 'before it came to'} {stall.place}", style="bold" if stall.seen else "")
    for frame in stall.frames:
        if str(frame) != stall.place:
            text.append(f"\n  {frame}", style="dim")
    return text


VERBS = (
    Verb(
        name="stalls",
        summary=f"who held the loop for too long, and at which line; it looks while it is on (for {THRESHOLD_SECONDS * 1000:.0f} ms or MS)",
        usage="[on [MS]|off|clear]",
        run=stalls,
        answer=StallReport,
        show=show,
        complete=lambda subject: ["on", "off", "clear"],
    ),
)
