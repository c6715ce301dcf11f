"""Ending a request from outside, wherever it is on its way."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from tripower.actors.queueing import CancelTicket, SettleQueue, cancellation
from tripower.actors.request_paths import RequestPath
from tripower.actors.runtime import Runtime
from tripower.api.http.exchange import Exchange
from tripower.api.request_paths import find_requests
from tripower.runtime.kernel import ActorGone, NotFound


async def cancel_requests(runtime: Runtime, active: Collection[Exchange], wanted: str) -> list[RequestPath]:
    """End the requests of an id and wait until they have ended and their seats are free. Returns where they were.

    A client is told `request_cancelled`, or cut off where it does not read; a program's generation fails with that code. Raises like
    `find_requests`. Giving up the wait does not keep them running.
    """
    found = await find_requests(runtime, active, wanted)
    for each in found:
        if each.exchange is not None:
            each.exchange.cancel(cancellation())
    for each in found:
        if each.exchange is not None:
            await each.exchange.over.wait()
            continue
        for queued in each.queued:
            with suppress(NotFound, ActorGone):  # it has ended in between
                await queued.queue.ask(CancelTicket(queued.ticket))
    for queue in {queued.queue.name: queued.queue for each in found for queued in each.queued}.values():
        with suppress(ActorGone):
            await queue.ask(SettleQueue())
    await runtime.settle()
    return [each.path for each in found]
