"""A download that is cancelled, killed, crowded out or doubled: the bytes that came are used, and nothing is fetched twice."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tripower.api.pull import PullProgress, pull
from tripower.runtime.store import HashingFile, Manifest, Store, StoreFull
from tripower.runtime.store.errors import mapped_os_errors

BODY = b"GGUF" + bytes(range(256)) * 8192  # 2 MiB and a little
HALF = len(BODY) // 2
SHA256 = hashlib.sha256(BODY).hexdigest()


@attrs.define
class Server:
    """Serves one file honestly; the first answer stops in the middle for ever if `stalls`."""

    stalls: bool = False
    url: str = ""
    starts: list[int] = attrs.field(factory=list)

    async def handle(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (received := await stream.receive_some(65536)):
                return
            head += received
        fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if line)
        start = int(fields.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.starts.append(start)
        lines = [
            "HTTP/1.1 206 Partial Content" if start else "HTTP/1.1 200 OK",
            f"content-range: bytes {start}-{len(BODY) - 1}/{len(BODY)}",
            f"content-length: {len(BODY) - start}",
            'etag: "one"',
            "connection: close",
        ]
        stall = self.stalls and len(self.starts) == 1
        await stream.send_all("\r\n".join([*lines, "", ""]).encode() + BODY[start : HALF if stall else None])
        if stall:
            await trio.sleep_forever()


@asynccontextmanager
async def serving(*, stalls: bool = False) -> AsyncIterator[Server]:
    server = Server(stalls)

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await server.handle(stream)
        except trio.BrokenResourceError:
            return  # the client went away

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield server
        nursery.cancel_scope.cancel(reason="the test is over")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def leftovers(store: Store) -> list[Path]:
    return [path for path in store.home.rglob("*") if path.is_file() and path.parent.name != "locks"]


def bytes_kept(store: Store) -> int:
    return sum(path.stat().st_size for path in (store.home / "partial").rglob("download"))


def assert_stored(store: Store, manifest: Manifest) -> None:
    assert store.path(manifest).read_bytes() == BODY
    assert manifest.primary.sha256 == SHA256
    assert not list((store.home / "partial").iterdir())


async def test_a_cancelled_download_keeps_every_byte_and_frees_the_lock(store: Store) -> None:
    received = 0
    async with serving(stalls=True) as server:
        with trio.CancelScope() as scope:

            def progress(told: PullProgress) -> None:
                nonlocal received
                if told.stage == "downloading":
                    received = told.completed
                    scope.cancel(reason="some bytes have come")

            await pull(f"{server.url}/m.gguf", store=store, progress=progress)
        assert scope.cancelled_caught
        assert 0 < bytes_kept(store) == received <= HALF
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert server.starts == [0, received]


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when its task has taken so many steps."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self.task = trio.lowlevel.current_task()
        self.scope = scope
        self.steps = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.steps -= 1
            if self.steps == 0:
                self.scope.cancel(reason="this step")


async def test_cancelled_at_any_step_it_is_whole_or_absent_and_can_go_on(store: Store) -> None:
    async with serving() as server:
        reference = f"{server.url}/m.gguf"
        finished_at = None
        for step in range(1, 200):
            with trio.CancelScope() as scope:
                instrument = CancelAtStep(scope, step)
                trio.lowlevel.add_instrument(instrument)
                try:
                    await pull(reference, store=store)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            manifest = store.find("m")
            if manifest is not None:
                assert store.path(manifest).read_bytes() == BODY
                store.remove("m")
            if not scope.cancelled_caught:
                finished_at = step
                break
        assert finished_at is not None
        assert_stored(store, await pull(reference, store=store))


async def test_a_disk_that_fills_up_frees_the_partial_and_names_the_cure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written = HashingFile.write

    def full(growing: HashingFile, data: bytes) -> None:
        if growing.size > HALF:
            with mapped_os_errors(growing.path):
                raise OSError(errno.ENOSPC, "No space left on device")
        written(growing, data)

    monkeypatch.setattr(HashingFile, "write", full)
    async with serving() as server:
        with pytest.raises(StoreFull, match="tripower rm NAME"):
            await pull(f"{server.url}/m.gguf", store=store)
        assert leftovers(store) == []
        monkeypatch.undo()
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))


async def test_two_pulls_of_one_thing_fetch_it_once(store: Store) -> None:
    told: list[PullProgress] = []
    async with serving() as server, trio.open_nursery() as nursery:
        for _ in range(2):

            async def one() -> None:
                await pull(f"{server.url}/m.gguf", store=store, progress=told.append)

            nursery.start_soon(one)
    assert len(server.starts) == 1
    assert [each.stage for each in told].count("already_stored") == 1
    (waited,) = [each for each in told if each.stage == "waiting"]
    assert waited.detail == f"waiting for process {os.getpid()}, pulling m"


PULL = """
import sys
from pathlib import Path
from tripower.api.pull.pull import pull_blocking
from tripower.runtime.store import Store

manifest = pull_blocking(sys.argv[1], store=Store(Path(sys.argv[2])))
print(manifest.primary.sha256)
"""


async def test_two_processes_fetch_one_thing_once(store: Store) -> None:
    async with serving() as server:
        command = [sys.executable, "-c", PULL, f"{server.url}/m.gguf", str(store.home)]
        outputs: list[bytes] = []

        async def run() -> None:
            outputs.append((await trio.run_process(command, capture_stdout=True)).stdout)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(run)
    assert outputs == [f"{SHA256}\n".encode()] * 2
    assert len(server.starts) == 1


async def test_a_killed_process_leaves_what_the_next_goes_on_from(store: Store) -> None:
    async with serving(stalls=True) as server:
        command = [sys.executable, "-c", PULL, f"{server.url}/m.gguf", str(store.home)]
        child = await trio.lowlevel.open_process(command)
        while not bytes_kept(store):  # noqa: ASYNC110  another process writes it
            await trio.sleep(0.01)
        child.kill()
        await child.wait()
        kept = bytes_kept(store)
        assert_stored(store, await pull(f"{server.url}/m.gguf", store=store))
    assert 0 < kept <= HALF
    assert server.starts == [0, kept]
