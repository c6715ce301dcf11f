"""What a verb of the console is, and what verbs look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

if TYPE_CHECKING:  # clients know verbs too, and load no runtime
    from rich.console import RenderableType

    from tripower.actors.runtime import Runtime
    from tripower.api.http.exchange import Exchange
    from tripower.api.overview.collector import Collector

VERB_SECONDS = 10.0
"""What one verb may take, unless it says otherwise. A stream may last for ever."""


@attrs.define(kw_only=True, eq=False)
class Subject:
    """The process that is looked at. What is not there (a library has no listener) is None or empty, and verbs say so."""

    runtime: Runtime
    active: set[Exchange] = attrs.Factory(set)
    """HTTP requests whose answer is not complete."""
    overview: Collector = attrs.Factory(lambda self: _collector(self), takes_self=True)
    """Makes the view of all of it."""
    drain: Callable[[], None] | None = None
    """Begin to shut down, as the first SIGTERM does. Synchronous."""
    python: bool = True
    """Whether `py` is answered."""
    state: dict[str, Any] = attrs.Factory(dict)
    """What verbs keep between the calls of one connection, under their own names. Every connection has its own."""


Run: TypeAlias = Callable[[Subject, Sequence[str]], Awaitable[Any]]
Stream: TypeAlias = Callable[[Subject, Sequence[str]], AsyncIterator[Any]]


@attrs.frozen(kw_only=True)
class Verb:
    """One word of the console. `run` answers once, `stream` goes on until the client has enough: exactly one of them is given.

    Both take the words after the verb, run in the server's Trio loop, never hold it for more than 2 ms at once, return what msgspec encodes
    to JSON, and raise `TripowerError` for what cannot be done. They are cancelled when the client stops the call or leaves.
    """

    name: str
    summary: str
    """One line for `help`."""
    usage: str = ""
    """The arguments, as in `REQUEST [SECONDS]`."""
    run: Run | None = None
    stream: Stream | None = None
    answer: Any = Any
    """The type of the answer, or of each item of the stream: what clients decode it as."""
    show: Callable[[Any], RenderableType] = str
    """What people see of an answer, or of an item. Runs in the client. Strings are shown as they are: styles are for `rich.text.Text`."""
    failed: Callable[[Any], bool] = lambda answer: False
    """Whether an answer tells of a failure: `tripower console -c` then ends with 1."""
    complete: Callable[[Subject], Sequence[str]] = lambda subject: ()
    """Words that the next argument could be."""
    seconds: float = VERB_SECONDS
    raw: bool = False
    """The rest of the line is one argument as it was typed, quotes and all."""


def _collector(subject: Subject) -> Collector:
    from tripower.api.overview.collector import Collector  # clients have none

    return Collector(subject.runtime, subject.active)
