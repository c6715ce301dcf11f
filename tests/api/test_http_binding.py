"""Sockets are bound before anything expensive, or refused with a cure."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
import trio

from tripower.api.http import bind
from tripower.api.http.binding import BoundSockets, reachable
from tripower.api.http.transport import KEEP_ALIVE_IDLE
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration


def bound(host: str = "127.0.0.1", port: int = 0) -> BoundSockets:
    return bind(ServerSettings(host=host, port=port))


def refused(host: str = "127.0.0.1", port: int = 0) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as caught:
        bound(host, port).close()
    return caught.value


class NoIPv6(socket.socket):
    """What a machine without IPv6 does."""

    def __init__(self, family: int = -1, *arguments: Any, **options: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *arguments, **options)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_the_url_is_one_that_works(host: str) -> None:  # BB-113
    with bound(host) as sockets:
        name, _, port = sockets.url.removeprefix("http://").rpartition(":")
        assert int(port) == sockets.port > 0
        async with await trio.open_tcp_stream(name, sockets.port):
            pass


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::"])
async def test_the_url_of_an_ipv6_address_works(host: str) -> None:  # BB-113
    with bound(host) as sockets:
        assert sockets.url == f"http://[::1]:{sockets.port}"
        async with await trio.open_tcp_stream("::1", sockets.port):
            pass
        if host == "::":
            async with await trio.open_tcp_stream("127.0.0.1", sockets.port):
                pass


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("10.0.0.1", "10.0.0.1"),
        ("localhost", "localhost"),
        ("a.b", "a.b"),
    ],
)
def test_a_wildcard_address_is_reached_on_loopback(host: str, expected: str) -> None:
    assert reachable(host) == expected


def test_localhost_is_bound_on_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:  # BB-113
    monkeypatch.setattr(socket, "socket", NoIPv6)
    addresses = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: addresses)
    with bound("localhost") as sockets:
        assert [each.family for each in sockets.sockets] == [socket.AF_INET]


@pytest.mark.parametrize("host", ["::", "::1"])
def test_an_ipv6_address_without_ipv6_is_refused_with_its_cure(host: str, monkeypatch: pytest.MonkeyPatch) -> None:  # BB-113
    monkeypatch.setattr(socket, "socket", NoIPv6)
    error = refused(host)
    assert error.code == "address_unavailable"
    assert "no IPv6" in error.message


def test_a_port_that_is_taken_is_refused_with_its_number_and_a_cure() -> None:  # BB-112
    with bound() as first:
        error = refused(port=first.port)
        assert error.code == "port_in_use"
        assert str(first.port) in error.message
        assert "--port" in error.message


def test_a_wildcard_finds_a_port_that_is_taken_on_one_address() -> None:  # BB-112
    with bound("0.0.0.0") as first:
        assert refused(port=first.port).code == "port_in_use"


def test_a_port_can_be_taken_again_at_once_after_it_was_freed() -> None:
    with bound() as first, socket.create_connection(("127.0.0.1", first.port)) as client:
        accepted, _ = first.sockets[0].accept()
        accepted.close()  # leaves TIME_WAIT on the server's side
        client.recv(1)
    with bound(port=first.port) as second:
        assert second.port == first.port


def test_nothing_stays_open_after_a_refusal() -> None:
    with bound() as first:
        refused(port=first.port)
    with bound(port=first.port):
        pass


def test_an_address_of_another_machine_is_refused() -> None:
    error = refused("192.0.2.1")
    assert error.code == "address_unavailable"
    assert "192.0.2.1" in error.message


def test_a_name_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    error = refused("nowhere.invalid")
    assert error.code == "host_unknown"
    assert "nowhere.invalid" in error.message


def test_a_port_that_needs_privileges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden(socket.socket):
        def bind(self, address: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Forbidden)
    assert refused(port=80).code == "port_forbidden"


def test_a_client_that_connects_before_the_server_runs_waits_in_the_kernel() -> None:
    with bound() as sockets, socket.create_connection(("127.0.0.1", sockets.port)):
        accepted, _ = sockets.sockets[0].accept()
        accepted.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_connections_inherit_what_bounds_a_client_that_does_not_acknowledge() -> None:  # ecosystem M1
    with (
        bind(ServerSettings(port=0, send_timeout_s=7)) as sockets,
        socket.create_connection(("127.0.0.1", sockets.port)),
    ):
        accepted, _ = sockets.sockets[0].accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEP_ALIVE_IDLE
