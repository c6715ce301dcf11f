"""Where a console's socket may be: whose folder, whose socket, and what was there before."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tripower.api.console.listening import console_socket, library_console, listen
from tripower.api.console.places import check_directory, make_directory, runtime_directories, runtime_directory, sockets
from tripower.runtime.configuration import ConsoleSettings, InvalidSettings, load_configuration
from tripower.runtime.kernel import InvalidConfiguration


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory of the test."""
    place = tmp_path / "run"
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", str(place))
    return place


def refused(place: Path, user: int | None = None) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        check_directory(place, user=user)
    assert caught.value.code == "console_directory_unsafe"
    return caught.value.message


def test_the_runtime_directory_is_the_named_one_else_the_sessions_else_one_of_the_users() -> None:
    user = os.geteuid()
    assert runtime_directory({"TRIPOWER_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/b"}) == Path("/a")
    assert runtime_directory({"XDG_RUNTIME_DIR": "/b"}) == Path("/b/tripower")
    assert runtime_directory({}) == Path(f"/tmp/tripower-{user}")
    searched = runtime_directories({"XDG_RUNTIME_DIR": "/b"})
    assert set(runtime_directories({})) < set(searched)  # a console finds a service that was started without the variable
    assert runtime_directories({"TRIPOWER_RUNTIME_DIR": "/a"}) == [Path("/a")]


def test_it_is_made_for_its_owner_only(folder: Path) -> None:
    make_directory(folder)
    make_directory(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o703, 0o1777])
def test_one_that_others_can_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(mode)
    assert f"{place} is writable by others (mode {mode:o})" in refused(place)
    with pytest.raises(InvalidConfiguration):
        listen(place / "s")
    assert list(place.iterdir()) == []


def test_a_parent_counts_too_unless_it_keeps_everybodys_files_apart(tmp_path: Path) -> None:
    place = tmp_path / "shared" / "mine"
    place.mkdir(parents=True)
    place.parent.chmod(0o777)
    assert str(place.parent) in refused(place)
    place.parent.chmod(0o1777)
    check_directory(place)


def test_another_users_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    somebody = os.geteuid() + 1
    if os.geteuid() == 0:  # whose own are everybody's to use
        os.chown(place, 4242, -1)
    assert f"{place} belongs to another user (uid {place.stat().st_uid})" in refused(place, user=somebody)


def test_what_a_link_leads_to_counts(tmp_path: Path) -> None:
    place, link = tmp_path / "shared", tmp_path / "link"
    place.mkdir()
    place.chmod(0o777)
    link.symlink_to(place)
    assert "writable by others" in refused(link)
    place.chmod(0o700)
    check_directory(link)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is no directory" in refused(tmp_path / "file")
    assert "No such file" in refused(tmp_path / "nothing")


def test_the_socket_is_its_owners_and_gone_in_the_end(folder: Path) -> None:
    with library_console(True) as opened:
        assert opened.path == folder / f"{os.getpid()}.sock"
        assert stat.S_IMODE(opened.path.stat().st_mode) == 0o600
        assert sockets(pid=os.getpid()) == [opened.path]
        with library_console(True) as second:
            assert second.path == folder / f"{os.getpid()}-2.sock"
            assert sockets(pid=os.getpid()) == [second.path, opened.path]
    assert list(folder.iterdir()) == []


def test_sockets_of_the_dead_are_swept_and_those_of_the_living_stay(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    make_directory(folder)
    dead, answered, unrelated = folder / f"{child.pid}.sock", folder / f"{child.pid}-2.sock", folder / "notes.txt"
    unrelated.write_text("x")
    with socket.socket(socket.AF_UNIX) as left, socket.socket(socket.AF_UNIX) as living:
        left.bind(str(dead))
        left.close()
        living.bind(str(answered))
        living.listen()
        with library_console(True):
            assert not dead.exists()
            assert answered.exists()
            assert unrelated.exists()


def test_at_a_named_path_the_dead_are_replaced_and_the_living_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with library_console(path), socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(InvalidConfiguration, match=r"another server answers at .* console\.socket") as caught:
            listen(path)
        assert caught.value.code == "socket_in_use"
        client.connect(str(path))
    assert not path.exists()


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "localhost:9000", "[::1]:9000", ":9000", "9000", "tcp://host/x"])
def test_an_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(InvalidSettings, match=r"console\.socket: expected the path of a Unix socket, never an address"):
        load_configuration(file=None, environment={}, flags={"console.socket": address})
    with pytest.raises(InvalidConfiguration, match="never an address"):
        listen(address)


def test_a_service_without_a_console_still_serves_and_one_that_was_asked_for_must_be(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    caplog.set_level(logging.WARNING, "tripower")
    with console_socket(ConsoleSettings()) as opened:
        assert opened is None
    (warning,) = caplog.records
    assert "there is no console" in warning.message and "TRIPOWER_RUNTIME_DIR" in warning.message
    with (
        pytest.raises(InvalidConfiguration, match="writable by others"),
        console_socket(ConsoleSettings(socket=str(folder / "s"))),
    ):
        pass
    with console_socket(ConsoleSettings(enabled=False, socket=str(folder / "s"))) as opened:
        assert opened is None
