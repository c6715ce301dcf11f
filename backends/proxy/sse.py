"""Server-sent events out of bytes that arrive in any portions.

Lines end in LF or CRLF; each is decoded as UTF-8 on its own, so that a character may be split between portions. Only `data` counts:
comments and other fields are passed over. An event is bounded while it grows and when it is complete, so a server that never ends a
line costs no more memory than one event.
"""

from __future__ import annotations

from collections.abc import Iterator

from tripower.backends.proxy.errors import UpstreamProtocol

EVENT_BYTES_MAX = 8 << 20


class EventParser:
    """Give it portions, and at the end nothing more; takes no portion twice."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._portions: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        """Bytes of the event so far, of its unfinished line too."""
        self._first = True

    def feed(self, portion: bytes) -> Iterator[str]:
        """The `data` of each event that this portion completes. Raises `UpstreamProtocol`: too long, or not UTF-8."""
        *lines, rest = portion.split(b"\n")
        for line in lines:
            self._grow(len(line))
            whole = b"".join((*self._portions, line))
            self._portions.clear()
            yield from self._take_line(whole.removesuffix(b"\r"))
        if rest:
            self._grow(len(rest))
            self._portions.append(rest)

    @property
    def pending(self) -> bool:
        """Whether an event has begun and not ended: at the end of the bytes it was cut off."""
        return bool(self._portions or self._data)

    def _grow(self, count: int) -> None:
        self._size += count
        if self._size > self._event_bytes_max:
            raise UpstreamProtocol(f"the upstream sent an event of more than {self._event_bytes_max} bytes")

    def _take_line(self, line: bytes) -> Iterator[str]:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            data, self._data, self._size = self._data, [], 0
            if data:
                yield _decoded(b"\n".join(data))
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not self._data:
            self._size = 0  # a stream of comments is no event


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UpstreamProtocol("the upstream sent an event that is not UTF-8") from error
