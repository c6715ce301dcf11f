"""Bodies of requests and the loop: a short one is read at once, a long one in a worker thread, and none has more in it than can be read.

A decoder holds the interpreter lock from the first byte to the last, in whatever thread it runs. What it takes depends little on the
bytes and much on the values, so a body has a limit on these: it is counted before it is decoded, outside of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from tripower.api.http.exchange import Exchange
from tripower.runtime.kernel import InvalidRequest

INLINE_BYTES = 1 << 16
"""Of a body that is read on the loop: a millisecond or two. The way to a worker and back would cost the usual request a fifth of one."""
LONG_BODIES_AT_ONCE = 1
"""More would only take turns at the interpreter, and leave less of it to the loop."""
CONTAINER_COST = 8
"""Of a list, an object or a name of its field, where a number or a text costs one."""
COST_MAX = (1 << 20) + (1 << 17)
"""A million ids of tokens, with room for what else a request has in it."""
LISTED_MAX = 10_000
"""Messages or items of a conversation, and parts of one of them."""

FIELD_BYTES_MAX, SPACES_MAX = 64, 16
"""Of a name, and between it and its colon, where a refusal tells the field."""
BACKSLASH = 0x5C

SIMPLE_TYPES = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
"""What a web page may send to a foreign server without being asked by it."""
CHARSET = re.compile(rb"""charset *= *["']?([^"'; ]*)""")

Read = TypeVar("Read")

_places: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("tripower.long_bodies")


async def read(body: bytes, work: Callable[[], Read]) -> Read:
    """What `work` makes of this body, or of what was decoded from it. Blocks for a long one, behind other long ones.

    Raises what `work` raises. A caller that is cancelled waits for nobody.
    """
    if len(body) <= INLINE_BYTES:
        return work()
    try:
        places = _places.get()
    except LookupError:
        places = trio.CapacityLimiter(LONG_BODIES_AT_ONCE)
        _places.set(places)
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=places)


async def decoded(exchange: Exchange, bytes_max: int, decode: Callable[..., Read]) -> tuple[bytes, Read]:
    """The body of a request, and what `decode(body, strict=…)` makes of it. Blocks until it is here.

    Raises `InvalidRequest` for a body that is too long or is called something else than JSON, and what `decode` raises.
    """
    check_content_type(exchange)
    body = await exchange.body(bytes_max)
    return body, await read(body, partial(decode, body, strict=exchange.strict))


def check_content_type(exchange: Exchange) -> None:
    """A body is read as JSON whatever it is called, for tools that call it nothing or a form.

    Except when a browser sends it under a type for which it does not ask first: then any web page could use this server.
    """
    given, _, parameters = exchange.headers.get(b"content-type", b"").lower().partition(b";")
    given = given.strip()
    if (charset := CHARSET.search(parameters)) is not None and charset[1] not in (b"utf-8", b"utf8", b"us-ascii"):
        raise InvalidRequest("send the body as UTF-8, the only encoding of JSON", code="unsupported_media_type", status=415)
    if given == b"multipart/form-data" or (given in (b"", *SIMPLE_TYPES) and b"origin" in exchange.headers):
        raise InvalidRequest("send the body as application/json", code="unsupported_media_type", status=415)


def check_cost(body: bytes) -> None:
    """Raise `InvalidRequest` (`too_many_values`), naming the field, for a long body that would hold the interpreter for long.

    Commas and brackets within texts count too as long as that is harmless; only a body with very many is looked at more closely.
    """
    if len(body) <= INLINE_BYTES or _cost(body, 0, len(body)) <= COST_MAX:
        return
    costly, field = _cost_outside_texts(body)
    if costly:
        raise InvalidRequest(
            f"{field or 'the body'}: has more values in it than can be read at once, which is about {COST_MAX:,} numbers or"
            f" {COST_MAX // CONTAINER_COST:,} lists, objects and names; send parts",
            code="too_many_values",
            param=field or None,
        )


def _cost(body: bytes, begin: int, end: int) -> int:
    containers = body.count(b"[", begin, end) + body.count(b"{", begin, end) + body.count(b":", begin, end)
    return body.count(b",", begin, end) + CONTAINER_COST * containers


def _cost_outside_texts(body: bytes) -> tuple[bool, str]:
    """Whether the cost without what is in texts, each of which costs one, is too much; and the field of the request where it became so."""
    cost = depth = end = begin = 0
    field = ""
    while begin < len(body):
        text = body[begin : min(end, begin + FIELD_BYTES_MAX)]  # the one before this stretch, with its quotation marks
        begin = _or_end(body, body.find(b'"', end))
        if depth == 1 and body[end : end + SPACES_MAX].lstrip().startswith(b":"):
            field = text.strip(b'"').decode(errors="replace")
        cost += 1 + _cost(body, end, begin)
        if cost > COST_MAX:
            return True, field
        depth += sum(body.count(sign, end, begin) for sign in (b"[", b"{"))
        depth -= sum(body.count(sign, end, begin) for sign in (b"]", b"}"))
        end = _end_of_text(body, begin + 1)
    return False, ""


def _end_of_text(body: bytes, at: int) -> int:
    """Behind the quotation mark that ends the text beginning at `at`: the first one without an odd number of backslashes before it."""
    while (mark := body.find(b'"', at)) >= 0:
        before = mark
        while before > at and body[before - 1] == BACKSLASH:
            before -= 1
        if (mark - before) % 2 == 0:
            return mark + 1
        at = mark + 1
    return len(body)


def _or_end(body: bytes, place: int) -> int:
    return place if place >= 0 else len(body)
