"""What changes the server, and what tells of its parts: `load`, `unload`, `drain`, `set`, `devices`, `models`, `cache`, `health`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.rigs import Listener, RecordingBackend, complete, open_toy, request, steps_only, warm_up
from tests.api.console.rigs import LONG, ask, looking_at_toy, run, shown
from tripower.api.console.verb import Subject
from tripower.api.console.verbs import find_verb
from tripower.runtime.kernel import InvalidRequest, LaneJob, ModelRefused, NotFound, Unavailable
from tripower.runtime.prefix_cache import PrefixSettings


def slow_loads(job: LaneJob) -> float:
    return 4.0 if job.name.startswith("load") else steps_only(job)


# What changes the server.


async def test_a_load_is_answered_when_the_model_can_be_used_and_an_unload_when_its_memory_is_free(
    autojump_clock: MockClock,
) -> None:
    async with open_toy(pace=slow_loads) as (runtime, backend):
        subject = Subject(runtime=runtime)
        loaded = await run(subject, "load", "toy")
        assert (loaded.model, loaded.state) == ("toy", "loaded") and loaded.seconds >= 4.0
        again = await run(subject, "load", "toy")
        assert again.already and not loaded.already and backend.loads == 1
        assert "is loaded already" in shown("load", again) and "is loaded, after" in shown("load", loaded)
        unloaded = await run(subject, "unload", "toy")
        assert unloaded.state == "unloaded" and backend.engine.closed
        assert "its memory is free" in shown("unload", unloaded)
        assert (await run(subject, "models"))[0].state == "unloaded"


async def test_an_unload_waits_for_whoever_uses_the_model(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        asked = await ask(nursery, server, "one", max_tokens=6)
        assert (await run(subject, "unload", "toy")).seconds >= 6.0
        await wait_all_tasks_blocked()
        assert asked.answer is not None and asked.answer.status == 200


async def test_models_that_are_not_there_are_refused_by_name(autojump_clock: MockClock) -> None:
    async with open_toy(RecordingBackend(ModelRefused("broken"))) as (runtime, _):
        subject = Subject(runtime=runtime)
        for verb in ("load", "unload", "models", "cache"):
            with pytest.raises(NotFound, match="none-such"):
                await run(subject, verb, "none-such")
        for verb in ("load", "unload"):
            with pytest.raises(InvalidRequest, match=f"write {verb} MODEL"):
                await run(subject, verb)
        with pytest.raises(ModelRefused, match="broken"):
            await run(subject, "load", "toy")
        (model,) = await run(subject, "models", "toy")
        assert (model.state, model.error) == ("unloaded", "broken")
        for verb in ("load", "unload", "models", "cache"):
            assert find_verb(verb).complete(subject) == ["toy"]


async def test_a_drain_is_the_servers_own_and_a_library_has_none(autojump_clock: MockClock) -> None:
    asked_to: list[str] = []
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        await ask(nursery, server, "one", max_tokens=2)
        with pytest.raises(Unavailable, match="no server"):
            await run(subject, "drain")
        assert asked_to == []
        draining = await run(attrs.evolve(subject, drain=lambda: asked_to.append("drain")), "drain")
        assert draining.active == 1 and asked_to == ["drain"] and "1 answer goes on" in shown("drain", draining)


@pytest.fixture
def levels() -> Iterator[None]:
    """Levels are the process's: they are put back."""
    names = ("tripower", "tripower.http", "tripower.queue")
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


async def test_levels_are_set_for_all_or_for_one_logger(autojump_clock: MockClock, levels: None) -> None:
    async with open_toy() as (runtime, _):
        subject = Subject(runtime=runtime)
        (all_,) = await run(subject, "set", "log", "warning")
        assert (all_.logger, all_.level) == ("tripower", "warning")
        assert logging.getLogger("tripower.http").getEffectiveLevel() == logging.WARNING
        (http,) = await run(subject, "set", "log", "DEBUG", "http")
        assert (http.logger, http.level, http.before) == ("tripower.http", "debug", "warning")
        assert logging.getLogger("tripower.queue").getEffectiveLevel() == logging.WARNING
        told = {each.logger: each.level for each in await run(subject, "set", "log")}
        assert (told["tripower"], told["tripower.http"], told["tripower.queue"]) == ("warning", "debug", "warning")
        for words in ((), ("colour",), ("log", "loud"), ("log", "info", "asyncio"), ("log", "info", "http", "more")):
            with pytest.raises(InvalidRequest):
                await run(subject, "set", *words)
        assert {"log", "debug", "tripower.http"} <= set(find_verb("set").complete(subject))


# What tells of its parts.


async def test_a_device_tells_what_it_works_on_and_since_when(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        (device,) = await run(subject, "devices")
        assert (device.device, device.state, device.job, device.jobs) == ("cpu0", "idle", "", 0)
        await ask(nursery, server, "one", LONG)
        await trio.sleep(2.5)
        (device,) = await run(subject, "devices")
        assert (device.state, device.job, device.job_seconds, device.jobs) == ("busy", "steps toy", 2.5, 1)
        assert "steps toy" in shown("devices", [device])
        with pytest.raises(InvalidRequest):
            await run(subject, "devices", "cpu0")
        nursery.cancel_scope.cancel()


async def test_a_model_tells_its_seats_and_who_waits(autojump_clock: MockClock) -> None:
    async with looking_at_toy() as (server, subject), trio.open_nursery() as nursery:
        for each in ("one", "two", "three"):
            await ask(nursery, server, each, max_tokens=2)
        await trio.sleep(2.5)
        (model,) = await run(subject, "models")
        assert (model.name, model.state, model.backend, model.determinism) == ("toy", "loaded", "toy", "exact")
        assert (model.running, model.seats, model.waiting, model.completed) == (1, 1, 1, 1)
        assert "1/1" in shown("models", [model])
        nursery.cancel_scope.cancel()


async def test_a_cache_tells_its_hits_and_why_it_missed(autojump_clock: MockClock) -> None:
    async with open_toy(prefix=PrefixSettings(bytes_max=1 << 20)) as (runtime, _):
        await warm_up(runtime)
        subject = Subject(runtime=runtime)
        for _ in range(2):
            await complete(runtime, "p" * 100)
        (cache,) = await run(subject, "cache", "toy")
        assert (cache.model, cache.requests, cache.hits) == ("toy", 2, 1) and cache.entries >= 1
        assert cache.requests == cache.hits + sum(cache.misses.values()) and cache.reused_tokens > 0
        assert "1 (50%)" in shown("cache", [cache])


async def test_without_reuse_there_is_no_cache_to_tell_of(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        assert await run(Subject(runtime=runtime), "cache") == []


async def test_health_is_told_with_its_reasons(autojump_clock: MockClock) -> None:
    def stuck(job: LaneJob) -> float:
        return 25.0 if job.name.startswith("steps") else 0.0

    async with open_toy(pace=stuck, stall_seconds=8.0) as (runtime, _), trio.open_nursery() as nursery:
        subject = Subject(runtime=runtime)
        assert (await run(subject, "health")).status == "ok"
        nursery.start_soon(Listener().run, runtime.generate(request()))
        await trio.sleep(15)
        health = await run(subject, "health")
        assert health.status == "failing" and "cpu0" in health.reasons[0] and "cpu0" in shown("health", health)
        (device,) = await run(subject, "devices")
        assert device.state == "wedged" and device.quiet_seconds >= 8.0
        nursery.cancel_scope.cancel()
        runtime.begin_drain()
        await trio.sleep(30)
        assert (await run(subject, "health")).status == "draining"
