"""How a flight recording looks to people: a line for a record, a page for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tripower.runtime.introspection.playback import ActorMoment, Moment, words_of
from tripower.runtime.introspection.recording import Noted, Passed, Record

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree


def line_of(record: Record) -> str:
    """One record."""
    took = ""
    if isinstance(record, Passed) and record.started is not None:
        took = f" in {seconds(record.ended - record.started)}"
    return f"#{record.number}  {words_of(record)}{took}"


def page_of(moment: Moment) -> RenderableType:
    """One record, with the tree of actors at that instant."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble((f"#{moment.number}", "bold"), f" of #{moment.first} to #{moment.last}, at {moment.at:.6f} s")
    return Group(head, *(Text(line) for line in _facts(moment)), _tree(moment))


def _facts(moment: Moment) -> Iterator[str]:
    record = moment.record
    if isinstance(record, Noted):
        yield f"  {record.actor} notes:"
        yield from (f"    {line}" for line in _plain(record.data))
        return
    yield f"  {record.kind} {record.message}, about {record.size} bytes"
    yield f"  from {record.sender or 'unknown'} to {record.receiver}"
    waited = "" if moment.waited is None else f"waited {seconds(moment.waited)}, "
    handled = "never handled" if moment.handled is None else f"handled in {seconds(moment.handled)}"
    if record.kind == "answer" and moment.waited is not None:
        waited, handled = "", f"{seconds(moment.waited)} after the ask was kept"
    yield f"  {waited}{handled}: {record.outcome}"
    if record.payload is not None:
        yield from (f"    {line}" for line in _plain(record.payload))


def _plain(data: Any) -> list[str]:
    return msgspec.json.format(msgspec.json.encode(data), indent=1).decode().splitlines()


def _tree(moment: Moment) -> Tree:
    from rich.tree import Tree

    root = Tree("actors", guide_style="dim")
    branches = {"": root}
    for actor in moment.actors:
        branches[actor.name] = branches.get(actor.parent, root).add(_actor(actor, moment))
    return root


def _actor(actor: ActorMoment, moment: Moment) -> RenderableType:
    from rich.text import Text

    figures = [f"{value} {name}" for name, value in (("queued", actor.inbox), ("control", actor.control), ("pending", actor.pending), ("crashes", actor.crashes)) if value]  # fmt: skip
    doing = f"  handles {actor.handling} for {seconds(actor.handling_seconds)}" if actor.handling else ""
    here = isinstance(moment.record, Passed) and moment.record.receiver == actor.name and bool(doing)
    return Text.assemble(
        (actor.name, "bold" if here else ""),
        (doing, "bold" if here else ""),
        (f"  {', '.join(figures)}" if figures else "", "dim"),
    )


def seconds(value: float) -> str:
    """A time in a unit that fits."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1000:.2f} ms" if value >= 0.001 else f"{value * 1e6:.0f} µs"
