"""From a process number, a path or nothing to the console that is meant."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.api.console.consoles import serving
from tripower.api.console import finding, peers
from tripower.api.console.client import open_console
from tripower.api.console.finding import CannotAttach

MINE = str(os.getpid())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory of the test."""
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def named(folder: Path, process: object) -> None:
    """Give the console at `s` the name that a process's would have."""
    (folder / "s").rename(folder / f"{process}.sock")


async def refused(target: str | None) -> str:
    with pytest.raises(CannotAttach) as caught:
        async with open_console(target):
            pass
    return caught.value.message


async def test_the_only_one_needs_no_name(folder: Path) -> None:
    async with serving(folder, url="http://here", models=["toy"]) as served:
        named(folder, MINE)
        for target in (None, MINE, str(folder / f"{MINE}.sock")):
            async with open_console(target) as console:
                assert (console.hello.pid, console.hello.url, console.hello.models) == (os.getpid(), "http://here", ("toy",))
        assert served.statistics().attached == 3  # each time once


async def test_of_several_each_is_listed_with_what_it_serves(folder: Path) -> None:
    other = folder / "other"
    other.mkdir(mode=0o700)
    async with serving(folder, url="http://first", models=["toy", "mine"]), serving(other, url="http://second"):
        named(folder, MINE)
        (other / "s").rename(folder / "4242.sock")
        said = (await refused(None)).splitlines()
        assert said[0] == "several servers run here: name one by its process"
        assert sorted(said[1:]) == [f"  {MINE}  http://first  toy, mine", f"  {MINE}  http://second"]
        assert "; what runs here:\n" in await refused("77")
        assert "http://first" in await refused("/nowhere/s")


async def test_where_nobody_is_the_command_that_starts_one_is_named(folder: Path) -> None:
    assert "`tripower serve MODEL`" in (said := await refused(None)) and str(folder) in said
    assert (await refused("4242")).startswith("process 4242 has no console, and no server")
    assert "there is no socket" in await refused("elsewhere/s")


async def test_a_socket_of_a_process_that_has_died_is_nobody(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "4242.sock"))
    assert "its process has ended" in await refused("4242")
    assert "no server with a console runs here" in await refused(None)


@pytest.mark.parametrize("address", ["127.0.0.1:8420", "host:1", "http://127.0.0.1:8420", "[::1]:80"])
async def test_an_address_is_refused_by_name(address: str) -> None:
    assert f"{address} is an address, and a console is only ever on this machine" in await refused(address)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Somebody who listens there and accepts nobody."""
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))
        opened.listen()
        opened.setblocking(False)
        yield opened


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"220 mail.example.org\n", "is no console of tripower's"),
        (b"", "says nothing"),
        (
            b'{"type":"hello","protocol":99,"version":"9.9","pid":1,"verbs":[]}\n',
            "tripower 9.9, whose console speaks otherwise",
        ),
        (b'{"type":"refusal","id":0,"code":"no","message":"not today"}\n', "refuses: not today"),
    ],
)
async def test_what_is_no_console_of_this_version_is_told(says: bytes, told: str, folder: Path) -> None:
    with listening(folder / "x") as opened:

        async def speak() -> None:
            await trio.lowlevel.wait_readable(opened)
            accepted, _ = opened.accept()
            with accepted:
                accepted.sendall(says)

        async with trio.open_nursery() as speaking:
            speaking.start_soon(speak)
            assert told in await refused(str(folder / "x"))


async def test_a_process_whose_loop_is_held_is_told_from_one_that_is_not_there(folder: Path, autojump_clock: MockClock) -> None:
    with listening(folder / "4242.sock"):
        assert "does not answer for 5 s: its loop is held" in await refused("4242")
        assert "does not answer" in await refused(None)  # it is the only one


async def test_another_users_socket_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(folder):
        monkeypatch.setattr(finding, "may_be_trusted", lambda peer: False)
        assert "belongs to another user" in await refused(str(folder / "s"))


def test_root_may_attach_to_anybodys_and_nobody_else_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for user, attaches, trusted in ((1000, True, True), (0, True, True), (1001, False, False)):
        peer = peers.Peer(pid=1, user=user)
        assert (peers.may_attach(peer), peers.may_be_trusted(peer)) == (attaches, trusted)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert peers.may_be_trusted(peers.Peer(pid=1, user=1001))
