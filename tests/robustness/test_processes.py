"""How a service ends with its engine, and that nothing of it goes on without it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.api.children import PATIENCE, started
from tests.api.test_cli_serve import rest_of, serving, streaming
from tripower.api.cli import exit_codes

DYING = """
import os, sys
from tripower.actors import device
handle = device.DeviceActor.on_message
steps = 0
async def on_message(self, message):
    global steps
    steps += isinstance(message, device.RunSteps)
    if steps > 1:
        {death}
    return await handle(self, message)
device.DeviceActor.on_message = on_message
from tripower.api.cli.program import main
sys.exit(main(["serve", "toy:10000", "--port", "0", "--set", "scheduler.steps_per_job=4"]))
"""
PROBING = """
import sys, tempfile, threading
from tripower.backends.llamacpp.probe import COMMAND, _child
with tempfile.TemporaryFile() as out, _child([*COMMAND, sys.argv[1], sys.argv[1]], out, out) as child:
    print(child.pid, flush=True)
    threading.Event().wait()
"""


# BB-083
@pytest.mark.parametrize(
    ("death", "status"),
    [
        ("raise RuntimeError('the engine died')", exit_codes.REFUSED),
        pytest.param("os.abort()", -signal.SIGABRT, marks=pytest.mark.long),
    ],
)
def test_a_service_whose_engine_is_dead_ends_with_a_failure(death: str, status: int, tmp_path: Path) -> None:
    with started([sys.executable, "-c", DYING.format(death=death)], tmp_path) as child:
        url = child.read_until("listens at ").split()[-1]
        child.read_until("curl ")
        while child.process.poll() is None:
            ask_to_the_end(url)
        assert child.end() == status


def ask_to_the_end(url: str) -> None:
    """A stream that is read until the server closes, however that comes about; it must not hang."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = b'{"model":"toy:10000","prompt":"x","stream":true,"ignore_eos":true,"max_tokens":64}'
    head = f"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(head.encode() + body)
        rest_of(connection)


# BB-110
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_service_has_no_children_that_could_survive_it(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path, "toy:10000") as (child, url, _), streaming(url, "toy:10000", tokens=20):
        process = psutil.Process(child.process.pid)
        assert process.num_threads() > 1
        assert process.children(recursive=True) == []
        child.process.send_signal(number)
        assert child.end() in (exit_codes.OK, exit_codes.FORCED, -number)
    assert not psutil.pid_exists(process.pid)


# BB-110: the one child there ever is, which tries a native library while a model loads.
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_child_that_tries_a_library_ends_with_the_service(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("cffi")
    endless = tmp_path / "endless"
    os.mkfifo(endless)
    with started([sys.executable, "-c", PROBING, str(endless)], tmp_path) as parent:
        assert parent.process.stdout is not None
        probing = psutil.Process(int(parent.process.stdout.readline()))
        parent.process.send_signal(number)
        assert parent.end() == -number
        probing.wait(PATIENCE)


@pytest.mark.long
def test_a_hangup_ends_a_service_that_has_nothing_to_read_again(tmp_path: Path) -> None:
    with serving(tmp_path, "toy") as (child, _, _):
        child.process.send_signal(signal.SIGHUP)
        assert child.end() == -signal.SIGHUP
