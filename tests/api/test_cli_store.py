"""`tripower pull`, `list` and `rm`."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.children import running, tripower
from tripower.api.cli import exit_codes

CONTENT = b"GGUF" + bytes(2000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.gguf"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_model_is_pulled_listed_and_removed(home: Path, file: Path) -> None:
    pulled = tripower(home, "pull", str(file), "--name", "mine")
    assert pulled.returncode == 0
    assert pulled.stdout.startswith("mine: stored, 2.0 KiB, SHA-256 verified\n")
    assert tripower(home, "pull", f"mine={file}", "--quiet").stdout.startswith("mine: already stored")
    listed = tripower(home, "list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "SIZE", "FORMAT", "SOURCE", "PULLED"]
    assert listed[1].startswith("mine  2.0 KiB  gguf    file:")
    (manifest,) = json.loads(tripower(home, "list", "--json").stdout)
    assert (manifest["name"], manifest["files"][0]["size"]) == ("mine", 2004)
    assert tripower(home, "rm", "mine").stdout == "removed mine, 2.0 KiB freed\n"
    assert tripower(home, "list").stdout == "no models here yet; `tripower pull smollm2` fetches a small one\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["pull", "nonsense"], "cannot use 'nonsense' as a model"),
        (["pull", "./missing.gguf"], "missing.gguf"),
        (["rm", "nonsense"], "`tripower list` shows those that are here"),
        (["pull", "smollm2", "--sha256", "xyz"], "64 hexadecimal digits"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], text: str, home: Path) -> None:
    finished = tripower(home, *words)
    assert finished.returncode == exit_codes.REFUSED
    assert text in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_a_wrong_digest_leaves_nothing(home: Path, file: Path) -> None:
    finished = tripower(home, "pull", str(file), "--sha256", "0" * 64)
    assert finished.returncode == exit_codes.REFUSED
    assert tripower(home, "list", "--json").stdout == "[]\n"


@contextmanager
def half_a_file() -> Iterator[str]:
    """The address of a file of which only the first half ever comes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                connection.recv(65_536)
                head = f'HTTP/1.1 200 OK\r\ncontent-length: {1 << 22}\r\netag: "one"\r\naccept-ranges: bytes\r\n\r\n'
                connection.sendall(head.encode() + b"GGUF" + bytes(1 << 21))

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/half.gguf"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def test_ctrl_c_in_a_pull_says_how_to_go_on_and_keeps_what_came(home: Path) -> None:
    with half_a_file() as address, running(home, "pull", address) as child:
        child.wait_for_error("downloading, ")
        child.process.send_signal(signal.SIGINT)
        assert child.end() == exit_codes.BY_SIGNAL + signal.SIGINT
        assert f"stopped; `tripower pull {address}` goes on from here\n" in child.errors
    assert any(part.stat().st_size > 0 for part in (home / "partial").rglob("*") if part.is_file())
    assert "Traceback" not in "".join(child.errors)


def test_run_fetches_a_model_that_is_not_here_by_its_source(home: Path) -> None:
    with half_a_file() as address, running(home, "run", address, "hi") as child:
        child.wait_for_error("downloading, ")
        child.process.send_signal(signal.SIGINT)
        assert child.end() == exit_codes.BY_SIGNAL + signal.SIGINT
