"""Each request's whole path: what the border knows of it, joined with what the queues remember.

A request of a client is an `Exchange`; once it is enqueued, its generations name their tickets, and until then its id is looked for in
the queues. What is in a queue and belongs to no exchange is the program's own. When a queue has done its part, the times that it took
are in the end of the answer, received or not, so that a client that does not read can still be told from a slow model.

Everything is read when somebody asks, and never for longer at once than the loop may be held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import attrs
import msgspec
import trio

from tripower.actors.dialogue import GenerationFinished
from tripower.actors.request_paths import Queued, RequestPath, own_id, queued_paths
from tripower.actors.runtime import Runtime
from tripower.api.http.exchange import Exchange
from tripower.runtime.introspection.turns import Turns
from tripower.runtime.kernel import InvalidRequest, NotFound

TEXT_MAX = 200


@attrs.frozen
class Located:
    """A request where it is found: at the border, in queues, or both."""

    path: RequestPath
    exchange: Exchange | None
    queued: Sequence[Queued]


async def request_paths(runtime: Runtime, active: Collection[Exchange]) -> list[RequestPath]:
    """Everything that waits or runs, the oldest first. `active` are the exchanges whose answer is not complete. Blocks for some turns."""
    located = await locate_requests(runtime, active)
    paths: list[RequestPath] = []
    turns = Turns()
    while located:  # to let go of a thousand takes its time as well
        if turns.due():
            await turns.give()
        paths.append(located.pop().path)
    paths.reverse()
    return paths


async def locate_requests(runtime: Runtime, active: Collection[Exchange]) -> list[Located]:
    """The same, with where each was found."""
    now = trio.current_time()
    queued = await queued_paths(runtime.system, now)
    turns = Turns()
    index = _Index()
    for each in queued:
        if turns.due():
            await turns.give()
        index.put(each)
    del queued
    await turns.give()
    found: list[Located] = []
    exchanges = [each for each in active if asks_a_model(each)]
    await turns.give()
    exchanges.sort(key=lambda each: not each.generations)  # who knows its tickets comes before who is looked for by its id
    for exchange in exchanges:
        if turns.due():
            await turns.give()
        entries = index.take(exchange)
        if not exchange.over.is_set():
            found.append(Located(exchange_path(exchange, entries, now), exchange, entries))
    for own in index.left():
        if turns.due():
            await turns.give()
        found.append(Located(_own_path(own), None, (own,)))
    await trio.lowlevel.checkpoint()
    found.sort(key=lambda each: (each.queued[0].ticket if each.queued else -1, each.path.id))
    await trio.lowlevel.checkpoint()
    found.sort(key=lambda each: each.path.age, reverse=True)
    await trio.lowlevel.checkpoint()  # what is made of them takes its time as well
    return found


def asks_a_model(exchange: Exchange) -> bool:
    """Whether it is for a model, or may turn out to be when its body is here. Looking at something is not."""
    return exchange.asked is not None or bool(exchange.model) or exchange.method == "POST"


def printable(text: str) -> str:
    """What a client wrote, so that it does nothing to a terminal. At most `TEXT_MAX` characters."""
    text = text[:TEXT_MAX]
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


class _Index:
    """Who is in the queues, by ticket and by id; each is taken once."""

    def __init__(self) -> None:
        self._by_ticket: dict[tuple[str, int], Queued] = {}
        self._by_id: defaultdict[str, list[Queued]] = defaultdict(list)

    def put(self, queued: Queued) -> None:
        self._by_ticket[queued.path.model, queued.ticket] = queued
        if queued.path.id:
            self._by_id[queued.path.id].append(queued)

    def take(self, exchange: Exchange) -> Sequence[Queued]:
        """Those that are an exchange's."""
        if exchange.generations:
            keys: Any = ((each.model, each.ticket) for each in exchange.generations)
        else:
            keys = [(each.path.model, each.ticket) for each in self._by_id.get(exchange.request_id.decode(), ())]
        return tuple(found for key in keys if (found := self._by_ticket.pop(key, None)) is not None)

    def left(self) -> list[Queued]:
        """Those that nobody has taken."""
        return list(self._by_ticket.values())


def _own_path(queued: Queued) -> RequestPath:
    path = queued.path
    return path if path.id else msgspec.structs.replace(path, id=own_id(queued))


def exchange_path(exchange: Exchange, queued: Sequence[Queued], now: float) -> RequestPath:
    """Where a client's request is. `queued` are those of its generations that are in a queue still."""
    age, since = max(0.0, now - exchange.began), exchange.waiting_since
    if queued:
        path = queued[0].path if len(queued) == 1 else _together([each.path for each in queued])
        arriving: float | None = max(0.0, age - path.age)
    else:
        path = _outside(exchange, now)
        arriving = path.arriving
    return msgspec.structs.replace(
        path,
        id=exchange.request_id.decode(),
        label=exchange.caller.label,
        model=printable(path.model),
        route=printable(exchange.path),
        place=path.place if since is None else "socket",
        age=age,
        arriving=arriving,
        socket=None if since is None else max(0.0, now - since),
    )


def _together(paths: Sequence[RequestPath]) -> RequestPath:
    """Of several answers to one request, the times of the one that is furthest, and the tokens of all."""
    first = max(paths, key=lambda path: (path.answer or 0.0, path.prompt or 0.0, path.age))
    generated = sum(path.generated_tokens for path in paths)
    return msgspec.structs.replace(
        first,
        generated_tokens=generated,
        tokens_max=sum(path.tokens_max for path in paths),
        tokens_per_second=(generated - 1) / first.answer if first.answer and generated > 1 else None,
    )


def _outside(exchange: Exchange, now: float) -> RequestPath:
    """Not in a queue yet, or not any more."""
    asked = exchange.asked
    path = RequestPath(
        id="",
        model=asked.model if asked is not None else exchange.model,
        place="answer" if exchange.started else "arriving",
        age=0.0,
        arriving=None if exchange.started else max(0.0, now - exchange.began),
        prompt_tokens=exchange.prompt_tokens,
        generated_tokens=exchange.completion_tokens,
        priority=asked.priority if asked is not None else 0,
    )
    ends = [each.end for each in exchange.generations]
    finished = [each for each in ends if isinstance(each, GenerationFinished)]
    if not ends:
        return path
    path = msgspec.structs.replace(
        path, place="answer", arriving=max(0.0, exchange.generations[0].enqueued_at - exchange.began)
    )
    if not finished:
        return path
    timings = max((each.timings for each in finished), key=lambda each: each.decode_seconds)
    generated = sum(each.usage.completion_tokens for each in finished)
    return msgspec.structs.replace(
        path,
        waiting=timings.wait_seconds,
        prompt=timings.prefill_seconds,
        answer=timings.decode_seconds,
        evaluated_tokens=path.prompt_tokens,
        reused_tokens=sum(each.usage.cached_tokens for each in finished),
        generated_tokens=generated,
        tokens_per_second=(generated - 1) / timings.decode_seconds if timings.decode_seconds and generated > 1 else None,
    )


async def find_requests(runtime: Runtime, active: Collection[Exchange], wanted: str) -> list[Located]:
    """Those of an id: one, unless clients gave several the same. MODEL#TICKET names a place in a queue, whoever's it is.

    Where no id is the wanted one, the only one that begins with it is meant. Raises `NotFound` (`request_not_found`) and, for a beginning
    of several, `InvalidRequest` (`ambiguous_request`).
    """
    located = await locate_requests(runtime, active)
    found = [each for each in located if each.path.id == wanted]
    found = found or [
        Located(msgspec.structs.replace(queued.path, id=wanted), None, (queued,))
        for each in located
        for queued in each.queued
        if own_id(queued) == wanted
    ]
    begun = [] if found or not wanted else [each for each in located if each.path.id.startswith(wanted)]
    if len({each.path.id for each in begun}) > 1:
        raise InvalidRequest(f"{len(begun)} requests begin with {wanted[:128]!r}: write more of it", code="ambiguous_request")
    if not (found or begun):
        raise NotFound(
            f"no request {wanted[:128]!r} waits or runs: it has ended, or never came; `requests` lists those that do",
            code="request_not_found",
        )
    return found or begun
