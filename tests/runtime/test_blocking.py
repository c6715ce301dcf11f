"""Foreign code that blocks, as a stream in the Trio loop. On the real clock: a real thread is the point of it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import trio

from tripower.runtime.kernel import BlockingStream, DeviceFailed, run_blocking

PATIENCE = 20.0


class Source:
    """An iterator that gives a number each time it is allowed to, and knows on which thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.given = 0
        self.threads: set[int] = set()
        self.allowed = threading.Semaphore(0)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        assert self.allowed.acquire(timeout=PATIENCE)
        self.threads.add(threading.get_ident())
        if self.given == self.count:
            raise StopIteration
        self.given += 1
        return self.given


def stream_of(source: Source, **options: object) -> BlockingStream[int]:
    return BlockingStream(lambda: iter(source), room=100, name="source", **options)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    """Let a thread get on."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def test_a_call_that_blocks_does_not_hold_up_the_loop() -> None:
    here = threading.get_ident()
    assert await run_blocking(threading.get_ident) != here


async def test_items_come_in_order_from_one_thread_and_end() -> None:
    source = Source(1000)
    source.allowed.release(1001)
    async with BlockingStream(lambda: iter(source), room=1000, name="source") as stream:
        assert [item async for item in stream] == list(range(1, 1001))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert len(source.threads) == 1 and source.threads != {threading.get_ident()}


async def test_an_item_is_there_before_the_next_one_is_pulled() -> None:
    source = Source(3)
    with trio.fail_after(PATIENCE):
        async with stream_of(source) as stream:
            for number in (1, 2, 3):
                source.allowed.release()
                assert await anext(stream) == number
            source.allowed.release()
            assert [item async for item in stream] == []


async def test_what_was_pulled_comes_before_the_error() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("it broke")

    async with BlockingStream(broken, room=10, name="broken") as stream:
        assert await anext(stream) == 1
        for _ in range(2):  # asked again, it is still broken
            with pytest.raises(KeyError, match="it broke"):
                await anext(stream)


async def test_a_source_that_does_not_open_raises_at_the_first_item() -> None:
    def refuse() -> Iterator[int]:
        raise ValueError("no such thing")

    async with BlockingStream(refuse, room=10, name="refuse") as stream:
        with pytest.raises(ValueError, match="no such thing"):
            await anext(stream)


async def test_leaving_waits_until_the_thread_has_let_go_of_the_source() -> None:
    source = Source(10)
    gone = weakref.ref(source)
    source.allowed.release(2)
    async with BlockingStream(iter(source).__iter__, room=10, name="source") as stream:
        assert await anext(stream) == 1
        allowed = source.allowed
        del source
        allowed.release()  # the pull that is under way when the block is left
    assert not stream.stuck
    del stream
    assert gone() is None


async def test_cancellation_leaves_in_the_same_way() -> None:
    source = Source(10)
    with trio.CancelScope() as scope:
        async with stream_of(source) as stream:
            scope.cancel()
            source.allowed.release()
            await anext(stream)
    assert scope.cancelled_caught and not stream.stuck


async def test_a_thread_that_does_not_come_back_is_told_of() -> None:
    source = Source(10)
    async with stream_of(source, grace_seconds=0.01) as stream:
        pass
    assert stream.stuck
    source.allowed.release()
    with trio.fail_after(PATIENCE):
        await until(lambda: not stream.stuck)


async def test_a_reader_that_falls_behind_loses_its_stream() -> None:
    source = Source(10)
    source.allowed.release(10)
    async with BlockingStream(lambda: iter(source), room=2, name="source") as stream:
        with trio.fail_after(PATIENCE):
            await until(lambda: source.given == 3)
        with pytest.raises(DeviceFailed, match="more than 2 items") as caught:
            while True:
                await anext(stream)
    assert caught.value.code == "reader_too_slow"
