"""A Unix socket beside or instead of TCP: whose it is, what it may replace, what is left of it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.api.certificates import certificate_files
from tests.api.fake_runtime import HELLO
from tests.api.serving import ASK, CHAT, Client, serving
from tripower.api.http import bind
from tripower.runtime.configuration import ServerSettings
from tripower.runtime.kernel import InvalidConfiguration


@asynccontextmanager
async def unix_client(path: Path) -> AsyncIterator[Client]:
    async with await trio.open_unix_socket(path) as stream:
        yield Client(stream)


def refused(path: Path | str, code: str) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        bind(ServerSettings(port=0, unix_socket=str(path))).close()
    assert caught.value.code == code
    return caught.value.message


async def test_it_is_served_beside_tcp_and_gone_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "tripower.sock"
    async with serving(HELLO, unix_socket=str(path)) as server:
        async with unix_client(path) as client:
            assert (await client.ask(CHAT, ASK)).status == 200
            assert (await client.ask("/health", headers={"host": "some.name"})).status == 200
        assert (await server.ask("/health")).status == 200
    assert not path.exists()


async def test_it_may_be_all_there_is(tmp_path: Path) -> None:
    path = tmp_path / "tripower.sock"
    async with serving(HELLO, unix_socket=str(path), tcp=False) as server, unix_client(path) as client:
        assert (server.url, server.port) == (f"unix:{path}", 0)
        assert (await client.ask(CHAT, ASK | {"stream": True})).status == 200


async def test_it_is_plain_where_tcp_is_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "tripower.sock"
    async with serving(HELLO, unix_socket=str(path), **certificate_files(tmp_path).settings), unix_client(path) as client:
        assert (await client.ask("/health")).status == 200


@pytest.mark.parametrize("mode", ["600", "660"])
def test_it_is_its_owners_and_the_groups_if_so_asked(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind(ServerSettings(unix_socket=str(path), unix_socket_mode=mode, tcp=False)):
        assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8)


def test_one_whose_server_died_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with bind(ServerSettings(unix_socket=str(path), tcp=False)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_one_that_somebody_answers_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind(ServerSettings(unix_socket=str(path), tcp=False)), socket.socket(socket.AF_UNIX) as client:
        assert str(path) in refused(path, "socket_in_use")
        client.connect(str(path))


def test_a_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    assert "is no socket" in refused(path, "socket_unusable")
    assert path.read_text() == "precious"


def test_one_that_another_server_has_put_there_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind(ServerSettings(unix_socket=str(path), tcp=False)):
        os.unlink(path)
        path.write_text("another's")
    assert path.exists()


def test_a_place_that_cannot_be_is_refused_and_no_port_stays_taken(tmp_path: Path) -> None:
    with bind(ServerSettings(port=0)) as free:
        port = free.port
    for path in (tmp_path / "none" / "s", tmp_path / ("x" * 120)):
        with pytest.raises(InvalidConfiguration, match=r"server\.unix_socket"):
            bind(ServerSettings(port=port, unix_socket=str(path)))
    with bind(ServerSettings(port=port)):
        pass


def test_a_server_without_any_listener_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"server\.unix_socket"):
        bind(ServerSettings(tcp=False))
