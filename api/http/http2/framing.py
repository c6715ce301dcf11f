"""The `h2` library with our limits, and what it cannot say: that a connection ends soon but not yet."""

from __future__ import annotations

import re
from collections.abc import Iterable

import h2.connection
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

STREAMS_MAX = 100
"""Requests of one connection that may run at the same time: what the standard calls the least to be useful (RFC 9113, 6.5.2)."""
HEADER_BYTES_MAX = 32 * 1024
"""A request's headers together, each counted with 32 bytes more, as the standard does. Thus there are at most 1,024 of them."""
STREAM_WINDOW = 65_535
"""Body bytes that may wait for the application, per request."""
CLOSED_STREAMS_MAX = 4096
"""How many ended streams are remembered by how they ended."""
METHOD = re.compile(rb"[A-Z-]{1,32}")

Header = tuple[bytes, bytes]


class Framing(h2.connection.H2Connection):
    """The server's side of a connection. `CONTINUATION` frames are bounded by `h2` itself, at 64 of 16 KiB."""

    DEFAULT_MAX_HEADER_LIST_SIZE = HEADER_BYTES_MAX
    MAX_CLOSED_STREAMS = CLOSED_STREAMS_MAX

    def __init__(self) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding=None))
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            },
        )

    def begin(self) -> None:
        """Say our settings. The connection's window has room for every stream's, so that none starves another."""
        self.initiate_connection()
        self.increment_flow_control_window(STREAM_WINDOW * (STREAMS_MAX - 1))

    def last_words(self) -> bytes:
        """A `GOAWAY` after which requests that run still get their answers. `close_connection` of `h2` would forbid these."""
        frame = GoAwayFrame(0, last_stream_id=self.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
        return bytes(frame.serialize())


def request_target(headers: Iterable[Header]) -> tuple[str, bytes] | None:
    """(method, path) of a request's pseudo headers; None when it is none that HTTP/1.1 could carry, such as `CONNECT`."""
    method = path = b""
    for name, value in headers:
        if name == b":method":
            method = value
        elif name == b":path":
            path = value
    if not METHOD.fullmatch(method) or method == b"CONNECT" or not (path.startswith(b"/") or path == b"*"):
        return None
    if not path.isascii() or any(byte <= 0x20 or byte == 0x7F for byte in path):
        return None
    return method.decode(), path
