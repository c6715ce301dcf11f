"""`help`: what can be typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tripower.api.console.verb import Subject, Verb
from tripower.api.console.verbs import all_verbs, unknown_verb

if TYPE_CHECKING:
    from rich.console import RenderableType


class VerbHelp(msgspec.Struct, frozen=True):
    """One verb for people."""

    name: str
    usage: str
    summary: str
    goes_on: bool = False
    """Whether it streams until it is stopped."""


async def describe(subject: Subject, words: Sequence[str]) -> list[VerbHelp]:
    """All verbs, or those that are named. Raises `InvalidRequest` for one that does not exist."""
    verbs = all_verbs()
    for word in words:
        if word not in verbs:
            raise unknown_verb(word)
    return [
        VerbHelp(verb.name, verb.usage, verb.summary, verb.stream is not None)
        for verb in verbs.values()
        if not words or verb.name in words
    ]


def show(verbs: list[VerbHelp]) -> RenderableType:
    """A table without lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for verb in verbs:
        typed = Text.assemble((verb.name, "bold"), f" {verb.usage}" if verb.usage else "")
        table.add_row(typed, Text(verb.summary + ("; Ctrl-C ends it" if verb.goes_on else "")))
    return table


VERBS = (
    Verb(
        name="help",
        summary="what can be typed",
        usage="[VERB]",
        run=describe,
        answer=list[VerbHelp],
        show=show,
        complete=lambda subject: list(all_verbs()),
    ),
)
