"""The end of a server: running requests finish, idle connections close, stragglers are told."""

from __future__ import annotations

import math

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.api.fake_runtime import HELLO, Script, finished, never_ending, tokens
from tests.api.serving import ASK, CHAT, Server, fill_without_reading, serving, until
from tripower.api.http import Drain, Drained

STREAM = ASK | {"stream": True}


async def begin_drain(server: Server, nursery: trio.Nursery, answers: list[Drained], seconds: float | None = None) -> None:
    """Ask for a drain and come back when it has begun and the listening socket is closed."""

    async def ask() -> None:
        answers.append(await server.api.ask(Drain(seconds)))

    nursery.start_soon(ask)
    await until(lambda: server.statistics().draining)
    await trio.testing.wait_all_tasks_blocked()


async def test_running_requests_finish_and_nothing_is_interrupted(autojump_clock: MockClock) -> None:
    script = Script([tokens("a"), 5.0, tokens("b"), finished()])
    answers: list[Drained] = []
    async with serving(script, drain_timeout_s=30) as server, server.client() as client, trio.open_nursery() as nursery:
        await client.send_request(CHAT, STREAM)
        await client.read_head()
        await begin_drain(server, nursery, answers)
        assert server.runtime.draining
        pieces = b""
        while piece := await client.read_chunk():
            pieces += piece
        assert pieces.endswith(b"data: [DONE]\n\n")
        assert await client.read_to_end() == b""
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 5
        assert answers == [Drained(interrupted=0)]
        assert server.statistics().open_connections == 0


async def test_an_idle_connection_does_not_hold_up_the_end(autojump_clock: MockClock) -> None:  # BB-109
    async with serving(HELLO, drain_timeout_s=30) as server, server.client() as used, server.client() as unused:
        await used.ask("/health")
        await until(lambda: server.statistics().open_connections == 2)
        assert await server.api.ask(Drain()) == Drained(interrupted=0)
        assert trio.current_time() == 0
        assert await used.read_to_end() == b""
        assert await unused.read_to_end() == b""


async def test_half_a_head_does_not_hold_up_the_end(autojump_clock: MockClock) -> None:
    async with serving(HELLO, drain_timeout_s=30) as server, server.client() as client:
        await client.send(b"GET /hea")
        await trio.testing.wait_all_tasks_blocked()
        assert await server.api.ask(Drain()) == Drained(interrupted=0)
        assert trio.current_time() == 0


async def test_a_straggler_is_told_and_the_end_is_soon_after_the_grace(autojump_clock: MockClock) -> None:  # BB-109
    answers: list[Drained] = []
    async with (
        serving(Script([tokens("a"), math.inf]), Script([math.inf]), drain_timeout_s=2) as server,
        server.client() as stream,
        server.client() as whole,
        trio.open_nursery() as nursery,
    ):
        await stream.send_request(CHAT, STREAM)
        await stream.read_head()
        await whole.send_request(CHAT, ASK)
        await server.runtime.wait_until(lambda: len(server.runtime.running) == 2)
        await begin_drain(server, nursery, answers)
        refused = await whole.read_answer()
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert b'"code":"draining"' in await stream.read_until(b"data: [DONE]\n\n")
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 2
        assert answers == [Drained(interrupted=2)]
        assert server.runtime.running == []


async def test_a_second_drain_can_stop_at_once(autojump_clock: MockClock) -> None:
    answers: list[Drained] = []
    async with (
        serving(Script([tokens("a"), math.inf]), drain_timeout_s=1000) as server,
        server.client() as client,
        trio.open_nursery() as nursery,
    ):
        await client.send_request(CHAT, STREAM)
        await client.read_head()
        await begin_drain(server, nursery, answers)
        await begin_drain(server, nursery, answers, 0)
        await client.read_until(b"data: [DONE]\n\n")
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 0
        assert answers == [Drained(1), Drained(1)]


async def test_a_drain_that_is_over_can_be_asked_for_again() -> None:
    async with serving(HELLO) as server:
        for _ in range(3):
            assert await server.api.ask(Drain()) == Drained(interrupted=0)


async def test_a_second_drain_cannot_prolong_the_first(autojump_clock: MockClock) -> None:
    answers: list[Drained] = []
    async with serving(Script([math.inf])) as server, server.client() as client, trio.open_nursery() as nursery:
        await client.send_request(CHAT, STREAM)
        await server.runtime.wait_until(lambda: len(server.runtime.running) == 1)
        await begin_drain(server, nursery, answers, 3)
        await begin_drain(server, nursery, answers, 1000)
        assert (await client.read_answer()).status == 503
        assert trio.current_time() == 3


async def test_a_client_that_does_not_read_does_not_hold_up_the_end(autojump_clock: MockClock) -> None:  # ecosystem M1
    async with serving(never_ending(), drain_timeout_s=2) as server, server.client() as client:
        await fill_without_reading(server, client)
        await trio.sleep(10)  # the pauses of the script; then nothing can be written any more
        began = trio.current_time()
        assert await server.api.ask(Drain()) == Drained(interrupted=1)
        assert trio.current_time() - began < 4
        assert server.runtime.running == []


async def test_while_draining_a_client_that_does_not_read_is_dropped_earlier(autojump_clock: MockClock) -> None:
    async with serving(never_ending(), drain_timeout_s=50, send_timeout_s=40) as server, server.client() as client:
        await fill_without_reading(server, client)
        await trio.sleep(10)
        began = trio.current_time()
        assert await server.api.ask(Drain()) == Drained(interrupted=0)
        assert trio.current_time() - began == pytest.approx(5)


async def test_new_work_on_a_kept_connection_is_refused_and_new_connections_are_not_taken(autojump_clock: MockClock) -> None:
    answers: list[Drained] = []
    script = Script([tokens("a"), 5.0, finished()])
    async with (
        serving(script, HELLO, drain_timeout_s=30) as server,
        server.client() as client,
        trio.open_nursery() as nursery,
    ):
        await client.send_request(CHAT, STREAM)
        await client.read_head()
        await begin_drain(server, nursery, answers)
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", server.port)
        await client.send_request(CHAT, ASK)  # sent ahead: never answered, since the connection ends
        assert (await client.read_to_end()).endswith(b"0\r\n\r\n")


async def test_a_stopped_actor_cuts_every_connection(autojump_clock: MockClock) -> None:
    async with serving(Script([tokens("a"), math.inf])) as server, server.client() as client:
        await client.send_request(CHAT, STREAM)
        await client.read_head()
        await server.api.stop()
        await client.read_to_end()
        assert trio.current_time() == 0
        assert server.runtime.running == []
