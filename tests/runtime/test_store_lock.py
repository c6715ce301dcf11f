"""A lock belongs to one holder at a time, says who that is, and never outlives its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from tripower.runtime.store import FileLock, StoreBusy

HOLDER = """
import sys
from pathlib import Path
from tripower.runtime.store import FileLock

lock = FileLock(Path(sys.argv[1]), "pulling big-model")
assert lock.acquire_nowait()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "one.lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock until its input ends."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child
        child.kill()


def test_one_holder_at_a_time_even_within_a_process(path: Path) -> None:
    first, second = FileLock(path, "first"), FileLock(path, "second")
    assert first.acquire_nowait()
    assert not second.acquire_nowait()
    assert "first" in second.holder()
    first.release()
    first.release()
    assert second.acquire_nowait()
    second.release()


def test_a_waiter_is_told_which_process_holds_it_and_at_what(path: Path, holder: subprocess.Popen[bytes]) -> None:
    lock = FileLock(path, "mine")
    assert not lock.acquire_nowait()
    assert lock.holder() == f"process {holder.pid}, pulling big-model"
    with pytest.raises(StoreBusy, match=f"process {holder.pid}, pulling big-model") as busy, lock.held(wait_seconds=0):
        pass
    assert busy.value.retryable


def test_a_killed_holder_leaves_the_lock_free(path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    with FileLock(path, "mine").held(wait_seconds=0):
        pass


async def test_waiting_ends_at_the_deadline_and_tells_once(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    first, second = FileLock(path, "first"), FileLock(path, "second")
    told: list[str] = []
    assert first.acquire_nowait()
    with pytest.raises(StoreBusy, match="first"):
        async with second.held_async(deadline=trio.current_time() + 5, on_wait=told.append):
            pass
    assert trio.current_time() == pytest.approx(5, abs=0.2)
    assert len(told) == 1
    first.release()


async def test_a_waiter_gets_it_when_the_holder_lets_go(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    order: list[str] = []

    async def hold(name: str) -> None:
        async with FileLock(path, name).held_async():
            order.append(f"{name} in")
            await trio.sleep(3)
            order.append(f"{name} out")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, "a")
        nursery.start_soon(hold, "b")
    assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])


async def test_a_cancelled_waiter_and_a_cancelled_holder_leave_it_free(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    holder, waiter = FileLock(path, "holder"), FileLock(path, "waiter")
    with trio.move_on_after(10):
        async with holder.held_async():
            with trio.move_on_after(2) as scope:
                async with waiter.held_async():
                    pass
            assert scope.cancelled_caught
            await trio.sleep_forever()
    assert waiter.acquire_nowait()
    waiter.release()
