"""A download over HTTP that can be broken off at any byte and gone on with.

Beside the growing file lies a small record of what it is the beginning of: the entity tag or the date, and the length. A later attempt
asks for the rest *if* the entity is still that one (`If-Range`), and starts over when the server sends the whole or something else
(RFC 9110, sections 13.1.5 and 14). What has been received is written even when the connection breaks or the caller gives up.

1. A connection that breaks in the body is picked up where it broke, at once, as long as every attempt brings something.
2. A body that is longer than declared is thrown away; a shorter one is a broken connection.
3. A server that ignores the range, or has another entity by now, is taken from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import msgspec

from tripower.api.pull.progress import Meter
from tripower.api.pull.responses import BrokenOff, open_response, received, status_error
from tripower.api.pull.workspace import in_thread
from tripower.runtime.kernel.errors import Unavailable
from tripower.runtime.store.durable import write_atomically
from tripower.runtime.store.errors import mapped_os_errors
from tripower.runtime.store.hashing_file import HashingFile

if TYPE_CHECKING:
    import httpx

ATTEMPTS_MAX = 8
WRITE_BYTES = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)\Z")


class Entity(msgspec.Struct, frozen=True):
    """Which version of a remote file some bytes belong to."""

    etag: str = ""
    last_modified: str = ""
    length: int | None = None

    @property
    def validator(self) -> str:
        """What `If-Range` may carry: a strong entity tag, else the date, else nothing."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified


@attrs.define
class HttpDownload:
    """One file from one address into `growing`. `ensure_room` raises `StoreFull` for a length that cannot fit."""

    url: str
    source: str
    growing: HashingFile
    record: Path
    meter: Meter
    ensure_room: Callable[[int], None]
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    _entity: Entity = attrs.field(factory=Entity, init=False)

    async def run(self, client: httpx.AsyncClient) -> httpx.Headers:
        """Fetch it all and return the headers of the first response.

        Raises `Unavailable`, after which the next call goes on, `NotFound`, `InvalidRequest`, `Overloaded`, `StoreFull`.
        """
        await in_thread(self._take_up)
        for _ in range(ATTEMPTS_MAX):
            before = self.growing.size
            try:
                facts = await self._attempt(client)
            except BrokenOff as error:
                if self.growing.size <= before:
                    cure = (
                        "what came is kept: pull again to go on"
                        if self.growing.size
                        else "check the network, the proxy and the address"
                    )
                    raise Unavailable(f"{error}; {cure}", code="connection_broken") from error
                continue
            if facts is not None:
                return facts
        raise Unavailable(f"{self.source} broke off {ATTEMPTS_MAX} times: pull again to go on", code="connection_broken")

    def _take_up(self) -> None:
        """Hash what an earlier attempt left, if its record says what it is. Runs in a thread."""
        try:
            self._entity = msgspec.json.decode(self.record.read_bytes(), type=Entity)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self._entity = Entity()
        stored = self.growing.stored()
        if stored and self._entity.validator:
            self.growing.keep(stored, checkpoint=self._tell_resuming)
        self.growing.cut()

    def _tell_resuming(self) -> None:
        self.meter.show_from_thread("resuming", self.growing.size, self._entity.length)

    async def _attempt(self, client: httpx.AsyncClient) -> httpx.Headers | None:
        """One exchange. None when the next has to start over."""
        headers = dict(self.headers)
        if not self._entity.validator:  # nothing can tell whether the file is still the same
            self.growing.restart()
        if self.growing.size:
            headers |= {"range": f"bytes={self.growing.size}-", "if-range": self._entity.validator}
        async with open_response(client, self.url, headers, self.source) as (response, first):
            if not await self._accept(response):
                return None
            await self._receive(response)
        return first

    async def _accept(self, response: httpx.Response) -> bool:
        """Decide whether the body goes on from what is here, is the whole, or is of no use (False: start over)."""
        if response.status_code == 416 and self.growing.size:
            return await self._start_over()
        if response.status_code not in (200, 206):
            raise status_error(response, self.source)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Unavailable(f"{self.source} is sent compressed, though plain bytes were asked for", code="source_failed")
        if response.status_code == 206:
            return self._continues(response) or await self._start_over()
        await self._begin(entity_of(response))
        return True

    def _continues(self, response: httpx.Response) -> bool:
        match = _CONTENT_RANGE.match(response.headers.get("content-range", ""))
        if match is None or int(match[1]) != self.growing.size or not self.growing.size:
            return False
        if self._entity.length is None:
            self._entity = msgspec.structs.replace(self._entity, length=int(match[2]))
        etag = response.headers.get("etag", self._entity.etag)
        return int(match[2]) == self._entity.length and etag == self._entity.etag

    async def _begin(self, entity: Entity) -> None:
        """The whole is coming: note what it is before its first byte is kept."""
        self.growing.restart()
        if entity.length is not None:
            self.ensure_room(entity.length)
        self._entity = entity
        with mapped_os_errors(self.record):
            await in_thread(write_atomically, self.record, msgspec.json.encode(entity))

    async def _start_over(self) -> bool:
        """Forget what is here; the attempt is of no use."""
        self.growing.restart()
        self._entity = Entity()
        return False

    async def _receive(self, response: httpx.Response) -> None:
        """Append the body and compare its length with what was declared."""
        pending = bytearray()
        total = self._entity.length
        try:
            async with received(response, self.source) as chunks:
                async for chunk in chunks:
                    pending += chunk
                    if len(pending) >= WRITE_BYTES:
                        block = bytes(pending)
                        pending.clear()
                        await in_thread(self.growing.write, block)
                    self.meter.show("downloading", self.growing.size + len(pending), total)
                    self._refuse_excess(pending)
        finally:
            if pending:  # at most WRITE_BYTES, so that a broken or cancelled download loses nothing
                self.growing.write(bytes(pending))
        self.growing.flush()
        if total is not None and self.growing.size < total:
            raise BrokenOff(f"{self.source} sent {self.growing.size} of {total} bytes")

    def _refuse_excess(self, pending: bytearray) -> None:
        if self._entity.length is not None and self.growing.size + len(pending) > self._entity.length:
            pending.clear()
            self.growing.restart()
            raise Unavailable(
                f"{self.source} sends more than the {self._entity.length} bytes it declared", code="length_mismatch"
            )


def entity_of(response: httpx.Response) -> Entity:
    """What a full response says of itself."""
    length = response.headers.get("content-length", "")
    return Entity(
        etag=response.headers.get("etag", ""),
        last_modified=response.headers.get("last-modified", ""),
        length=int(length) if length.isdecimal() else None,
    )
