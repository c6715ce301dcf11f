"""`GET /slots`: every seat of every loaded model, in the words of llama-server.

What is said there is never told. Whose request has a seat, and with which settings, only its own caller and an administrator hear.
A seat has no number of its own here: `id` counts the seats of a model at this moment, the longest taken first; `id_task` stays the
same for as long as a request runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, UnsetType

from tripower.actors.queueing import QueueStatistics, SeatStatistics
from tripower.api.http.answers import encode
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.service import Service
from tripower.runtime.engine import SamplingParameters
from tripower.runtime.kernel import InvalidRequest, NotFound, Overloaded

QUERY_FIELDS_MAX = 100


class SlotParams(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a request, under llama-server's names."""

    n_predict: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float


class NextToken(msgspec.Struct, frozen=True):
    """How far an answer is."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class SlotOut(msgspec.Struct, frozen=True, kw_only=True):
    """One seat."""

    id: int
    model: str
    n_ctx: int
    is_processing: bool
    id_task: int = -1
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    next_token: NextToken | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    params: SlotParams | UnsetType = UNSET


class Slots:
    """The seats. `?model=` shows one model's; `?fail_on_no_slot=1` answers 503 where none is free."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        query = _query(scope["query_string"])
        cards = {card.name: card for card in await self._service.runtime.models()}
        if query.get("model", "") not in {"", *cards}:
            raise NotFound(f"there is no model {query['model'][:200]!r}", param="model")
        wanted = {query["model"]} if query.get("model") else cards.keys()
        slots = [
            slot
            for queue in self._queues()
            if queue.model in wanted
            for slot in slots_of(queue, cards[queue.model].context, exchange)
        ]
        if query.get("fail_on_no_slot", "0") not in ("", "0") and all(slot.is_processing for slot in slots):
            raise Overloaded("no seat is free", code="no_slot_available", retry_after=1.0)
        await exchange.answer(200, encode(slots))

    def _queues(self) -> list[QueueStatistics]:
        found = [actor.details for actor in self._service.runtime.statistics()]
        return sorted((each for each in found if isinstance(each, QueueStatistics)), key=lambda queue: queue.model)


def slots_of(queue: QueueStatistics, context: int, exchange: Exchange) -> Iterator[SlotOut]:
    """The seats of one model: those whose request is known, those that are taken, those that are free."""
    for id in range(queue.batch.members_max):
        if id < len(queue.seats):
            yield _taken(id, queue.model, context, queue.seats[id], exchange)
        else:
            yield SlotOut(id=id, model=queue.model, n_ctx=context, is_processing=id < queue.batch.members)


def _taken(id: int, model: str, context: int, seat: SeatStatistics, exchange: Exchange) -> SlotOut:
    mine = exchange.admin or exchange.caller.identity == seat.identity
    remaining = max(0, seat.tokens_max - seat.generated)
    return SlotOut(
        id=id,
        model=model,
        n_ctx=context,
        is_processing=True,
        id_task=seat.ticket,
        n_prompt_tokens=seat.prompt_tokens,
        n_prompt_tokens_processed=min(seat.evaluated, seat.prompt_tokens),
        next_token=NextToken(remaining > 0, remaining, seat.generated),
        request_id=seat.request_id if mine else UNSET,
        params=_params(seat.tokens_max, seat.sampling) if mine else UNSET,
    )


def _params(tokens_max: int, sampling: SamplingParameters) -> SlotParams:
    same = {name: getattr(sampling, name) for name in SlotParams.__struct_fields__ if name != "n_predict"}
    return SlotParams(n_predict=tokens_max, **same)


def _query(query: bytes) -> dict[str, str]:
    """The first value of each field. Raises `InvalidRequest`."""
    try:
        return {name: values[0] for name, values in parse_qs(query.decode("latin-1"), max_num_fields=QUERY_FIELDS_MAX).items()}
    except ValueError as error:
        raise InvalidRequest(f"the query has more than {QUERY_FIELDS_MAX} fields", code="invalid_query") from error
