"""`requests`, `trace` and `cancel`: where each request is, what happens to one, and how to end it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from tripower.actors.request_paths import RequestPath
from tripower.api.console.table import FittedTable
from tripower.api.console.text import duration
from tripower.api.console.verb import Subject, Verb
from tripower.api.console.words import model_names, one_word, word_or_none
from tripower.api.trace_events import TraceEvent
from tripower.runtime.kernel.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

CANCEL_SECONDS = 30.0
IDS_MAX = 200
"""As many are looked at to complete a word."""
SPARE = ("ARRIVING", "A SECOND", "LEFT", "PROMPT", "ANSWER", "WAITING", "SOCKET", "WHOSE", "TOKENS", "MODEL", "AGE")
"""Columns of `requests` that a reader can do without."""


async def list_requests(subject: Subject, words: Sequence[str]) -> list[RequestPath]:
    """Everything that waits or runs, the oldest first; of one model, if it is named. Raises `NotFound` for one that is not known."""
    from tripower.api.request_paths import request_paths

    model = word_or_none(words, "requests [MODEL]")
    paths = await request_paths(subject.runtime, subject.active)
    if model is not None and model not in (names := {*model_names(subject), *(path.model for path in paths)}):
        raise NotFound(f"there is no model {model[:200]!r}; known: {', '.join(sorted(names - {''})) or 'none'}", param="model")
    return [path for path in paths if model is None or path.model == model]


def show_requests(paths: list[RequestPath]) -> RenderableType:
    """A line for each; a column that would be empty is left out."""
    from rich.text import Text

    if not paths:
        return Text("no request waits or runs")
    cells = {
        "REQUEST": [path.id for path in paths],
        "MODEL": [path.model or "?" for path in paths],
        "WHOSE": [path.label for path in paths],
        "PLACE": [path.place for path in paths],
        "AGE": [duration(path.age) for path in paths],
        **{
            name.upper(): [duration(getattr(path, name)) for path in paths]
            for name in ("arriving", "waiting", "prompt", "answer", "socket")
        },
        "TOKENS": [tokens(path) for path in paths],
        "A SECOND": [f"{path.tokens_per_second:.3g}" if path.tokens_per_second else "" for path in paths],
        "LEFT": [duration(path.deadline_left) for path in paths],
    }
    styles = ["yellow" if path.place == "socket" else "" for path in paths]
    return FittedTable(cells=cells, left=("REQUEST", "MODEL", "WHOSE", "PLACE"), spare=SPARE, styles=styles)


def tokens(path: RequestPath) -> str:
    """As `18+5/500`: of the prompt, generated, and how many there may be."""
    prompt = str(path.prompt_tokens) if path.prompt_tokens else "?"
    if path.place == "prompt" and path.evaluated_tokens < path.prompt_tokens:
        prompt = f"{path.evaluated_tokens}/{prompt}"
    return f"{prompt}+{path.generated_tokens}" + (f"/{path.tokens_max}" if path.tokens_max else "")


def request_ids(subject: Subject) -> list[str]:
    """Ids that can be meant: of clients' requests, and of the program's own. Synchronous: for completion."""
    from tripower.actors.request_paths import queues
    from tripower.api.request_paths import asks_a_model

    ids = [exchange.request_id.decode() for exchange in subject.active if asks_a_model(exchange)][:IDS_MAX]
    for queue in queues(subject.runtime.system):
        tickets: list[int] = queue.look(lambda actor: actor.live_tickets()) or []
        ids += [f"{queue.name.removeprefix('queue:')}#{ticket}" for ticket in tickets[: IDS_MAX - len(ids)]]
    return ids


async def trace(subject: Subject, words: Sequence[str]) -> AsyncIterator[TraceEvent]:
    """What happens to one request until it is over."""
    from tripower.api.request_trace import trace_request

    wanted = one_word(words, "trace REQUEST: `requests` lists them")
    async with aclosing(trace_request(subject.runtime, subject.active, wanted)) as events:
        async for event in events:
            yield event


def show_event(event: TraceEvent) -> RenderableType:
    """One line: when, what, and more about it."""
    from rich.text import Text

    line = Text(f"{event.at:9.3f} s  ")
    line.append(f"{event.event:<9}", style={"failed": "red", "unread": "yellow", "missed": "yellow"}.get(event.event, "bold"))
    if event.event == "tokens":
        line.append(f"{event.tokens} token{'' if event.tokens == 1 else 's'}  ")
    line.append(event.about)
    if event.message:
        line.append(f"  {event.message} {event.request}", style="dim")
    return line


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has been ended, as it was just before. Its seat is free."""

    id: str
    model: str
    place: str
    age: float
    generated_tokens: int


async def cancel(subject: Subject, words: Sequence[str]) -> list[Cancelled]:
    """End a request and wait until its seat is free: one, unless clients gave several the same id."""
    from tripower.api.request_cancellation import cancel_requests

    ended = await cancel_requests(subject.runtime, subject.active, one_word(words, "cancel REQUEST: `requests` lists them"))
    return [
        Cancelled(id=path.id, model=path.model, place=path.place, age=path.age, generated_tokens=path.generated_tokens)
        for path in ended
    ]


def show_cancelled(ended: list[Cancelled]) -> RenderableType:
    """A sentence for each."""
    from rich.text import Text

    def sentence(one: Cancelled) -> str:
        place = {"waiting": "in the waiting room", "socket": "while its client did not read"}.get(
            one.place, f"at its {one.place}"
        )
        if one.place == "arriving":
            place = "before it had come to a model"
        generated = f", with {one.generated_tokens} tokens" if one.generated_tokens else ""
        return f"{one.id} is cancelled {place}, after {duration(one.age)}{generated}; its seat is free"

    return Text("\n".join(map(sentence, ended)))


VERBS = (
    Verb(
        name="requests",
        summary="where each request is, and how long it has been in each place",
        usage="[MODEL]",
        run=list_requests,
        answer=list[RequestPath],
        show=show_requests,
        complete=model_names,
    ),
    Verb(
        name="trace",
        summary="what happens to a request, message by message, until it is over",
        usage="REQUEST",
        stream=trace,
        answer=TraceEvent,
        show=show_event,
        complete=request_ids,
    ),
    Verb(
        name="cancel",
        summary="end a request; answered when its seat is free",
        usage="REQUEST",
        run=cancel,
        answer=list[Cancelled],
        show=show_cancelled,
        complete=request_ids,
        seconds=CANCEL_SECONDS,
    ),
)
