"""The `h2` library with our limits, and two things that it cannot say: that a connection ends soon but not yet, and that a malformed
request is the end of its stream only (RFC 9113, 8.1.1), since a connection may carry the requests of many behind a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import h2.connection
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.events import Event, RequestReceived, StreamReset, TrailersReceived
from h2.exceptions import InvalidBodyLengthError, ProtocolError
from h2.settings import SettingCodes, Settings
from h2.utilities import HeaderValidationFlags, validate_headers
from hyperframe.frame import DataFrame, Frame, GoAwayFrame

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
        # Headers are validated below by the same rules; `h2` would end the connection.
        super().__init__(H2Configuration(client_side=False, header_encoding=None, validate_inbound_headers=False))
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

    def _receive_frame(self, frame: Frame) -> list[Event]:
        """See `h2`. A malformed request becomes a `StreamReset` of ours, which costs its client as much as one of its own."""
        try:
            events = super()._receive_frame(frame)
        except InvalidBodyLengthError:  # `h2` has taken the frame off the connection's window already
            if isinstance(frame, DataFrame) and frame.flow_controlled_length:
                self.increment_flow_control_window(frame.flow_controlled_length)
            return [self._reset_malformed(frame.stream_id)]
        if any(isinstance(event, RequestReceived | TrailersReceived) and is_malformed(event) for event in events):
            return [self._reset_malformed(frame.stream_id)]
        return events

    def _reset_malformed(self, number: int) -> StreamReset:
        self.reset_stream(number, ErrorCodes.PROTOCOL_ERROR)
        return StreamReset(stream_id=number, error_code=ErrorCodes.PROTOCOL_ERROR, remote_reset=False)

    def last_words(self) -> bytes:
        """A `GOAWAY` after which requests that run still get their answers. `close_connection` of `h2` would forbid these."""
        frame = GoAwayFrame(0, last_stream_id=self.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
        return bytes(frame.serialize())


def is_malformed(event: RequestReceived | TrailersReceived) -> bool:
    """Whether headers break the rules of RFC 9113, 8.2 and 8.3: names, values, pseudo headers, and hosts that contradict."""
    trailer = isinstance(event, TrailersReceived)
    flags = HeaderValidationFlags(is_client=False, is_trailer=trailer, is_response_header=False, is_push_promise=False)
    try:
        for _ in validate_headers(event.headers, flags):  # it looks while it is read
            pass
    except ProtocolError:
        return True
    return False


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
