"""Many connections, and bytes that nobody should send."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.fake_runtime import HELLO
from tests.api.http2_client import Http2Client
from tests.api.serving import ASK, CHAT, Client, request_bytes, serving
from tripower.api.http.listening.exposure import check_exposure, raise_descriptor_limit
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration

IDLE = 1000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4 * IDLE + 200:
        pytest.skip("this process may not have so many descriptors")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_thousand_idle_connections_are_kept_and_are_no_trouble(many_descriptors: None) -> None:
    async with serving(HELLO) as server:
        clients = [await server.open_client() for _ in range(IDLE)]
        assert (await server.ask(CHAT, ASK)).status == 200
        assert server.statistics().open_connections >= IDLE
        for client in (clients[0], clients[-1]):
            assert (await client.ask("/health")).status == 200
        for client in clients:
            await client.stream.aclose()
        await server.wait_closed()


async def test_one_address_may_have_so_many_connections_and_no_more() -> None:
    async with serving(HELLO, connections_per_address=2) as server:
        async with server.client() as first, server.client() as second:
            assert (await first.ask("/health")).status == 200
            assert (await second.ask("/health")).status == 200
            async with server.client() as third:
                assert await third.read_to_end() == b""
        await server.wait_closed()
        assert (await server.ask("/health")).status == 200


HTTP_1 = request_bytes(CHAT, ASK) + request_bytes("/health")


def http_2() -> bytes:
    client = Http2Client(trio.testing.memory_stream_pair()[0])
    client.ask_nowait(1, CHAT, ASK)
    client.ask_nowait(3, "/health")
    return client.frames.data_to_send()


HTTP_2 = http_2()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Requests with some bytes replaced, removed and added; or anything at all behind a good beginning."""
    data = bytearray(draw(st.sampled_from([HTTP_1, HTTP_2, PREFACE + b"\0\0\0\4\0\0\0\0\0", b""])))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 12))] = draw(st.binary(max_size=12))
    return bytes(data) + draw(st.binary(max_size=64))


class Faults(logging.Handler):
    """What the server logs of faults of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@given(data=damaged(), cuts=st.lists(st.integers(1, 64), max_size=6))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_harm_anybody_else(data: bytes, cuts: list[int]) -> None:
    trio.run(_send_and_look, data, cuts)


async def _send_and_look(data: bytes, cuts: list[int]) -> None:
    faults = Faults()
    logging.getLogger("tripower.http").addHandler(faults)
    try:
        await _send_in_pieces(data, cuts)
    finally:
        logging.getLogger("tripower.http").removeHandler(faults)
    assert faults.messages == []


async def _send_in_pieces(data: bytes, cuts: list[int]) -> None:
    async with serving(HELLO) as server:
        async with server.client() as client:
            for cut in cuts:
                await _send(client, data[:cut])
                data = data[cut:]
            await _send(client, data)
            await trio.testing.wait_all_tasks_blocked()
        assert (await server.ask("/health")).status == 200
        await server.wait_closed()
        assert server.runtime.running == []
        assert server.statistics().active_requests == 0


async def _send(client: Client, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # when the server has seen enough
        await client.send(data)


# Who may be listened to.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "myhost", "10.0.0.1"])
def test_an_address_that_others_reach_needs_keys_or_a_word(host: str) -> None:
    with pytest.raises(InvalidConfiguration, match="no API keys.*allow_public_without_keys") as caught:
        check_exposure(ServerSettings(host=host), has_keys=False)
    assert caught.value.code == "public_without_keys"
    check_exposure(ServerSettings(host=host), has_keys=True)
    check_exposure(ServerSettings(host=host, allow_public_without_keys=True), has_keys=False)
    check_exposure(ServerSettings(host=host, tcp=False, unix_socket="/s"), has_keys=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "LOCALHOST.", "127.3.2.1"])
def test_an_address_of_this_machine_needs_none(host: str) -> None:
    check_exposure(ServerSettings(host=host), has_keys=False)


def test_all_web_pages_may_come_only_where_there_are_keys() -> None:
    with pytest.raises(InvalidConfiguration, match="every web page") as caught:
        check_exposure(ServerSettings(cors_origins=("*",)), has_keys=False)
    assert caught.value.code == "cors_without_keys"
    check_exposure(ServerSettings(cors_origins=("*",)), has_keys=True)
