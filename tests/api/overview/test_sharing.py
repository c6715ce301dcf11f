"""Whoever looks at a server, through its console or its page, looks with the same collector."""

from __future__ import annotations

from typing import cast

import trio

from tests.api.fake_runtime import FakeRuntime
from tests.api.overview.overviews import overview
from tests.api.serving import PATIENCE, Client, configured
from tripower.actors.runtime import Runtime
from tripower.api.http import bind, start_api
from tripower.api.http.actor import Drain
from tripower.api.overview.collector import Collector
from tripower.api.overview.figures import Overview
from tripower.runtime.kernel import open_actor_system


class Watched(Collector):
    """Says what it is told to say, and how often it was asked."""

    looks = 0

    async def look(self) -> Overview:
        await trio.lowlevel.checkpoint()
        self.looks += 1
        return overview()


async def test_the_page_looks_with_the_collector_that_the_service_was_given() -> None:
    configuration = configured()
    with trio.fail_after(PATIENCE), bind(configuration.server) as bound:
        async with open_actor_system() as system:
            runtime = cast(Runtime, FakeRuntime(system))
            shared = Watched(runtime)
            api = start_api(runtime, configuration, bound, overview=shared)
            async with await trio.open_tcp_stream("127.0.0.1", bound.port) as stream:
                answer = await Client(stream).ask("/ui/state")
            assert answer.json["overview"]["url"] == overview().url and shared.looks == 1
            await api.ask(Drain(timeout_seconds=0))


async def test_without_one_it_makes_its_own() -> None:
    configuration = configured()
    with trio.fail_after(PATIENCE), bind(configuration.server) as bound:
        async with open_actor_system() as system:
            api = start_api(cast(Runtime, FakeRuntime(system)), configuration, bound)
            async with await trio.open_tcp_stream("127.0.0.1", bound.port) as stream:
                answer = await Client(stream).ask("/ui/state")
            assert answer.json["overview"]["url"] == bound.url
            await api.ask(Drain(timeout_seconds=0))
