"""The parts of a runtime crash, one after the other and at every moment, and it serves again; or it gives up for good."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.actors.rigs import (
    Listener,
    RecordingBackend,
    Saboteur,
    assert_quiet,
    complete,
    figures,
    greedy,
    open_toy,
    request,
    warm_up,
)
from tripower.actors.device import DeviceActor
from tripower.actors.runtime import Runtime, open_actors, toy_plan
from tripower.actors.system import LocateParts, SystemActor
from tripower.runtime.kernel import Actor, ActorFailed, ActorGone, InlineLane, Supervision, TripowerError, open_actor_system

PARTS = ["device:cpu0", "registry", "queue:toy"]


async def test_everybody_has_a_place_and_a_parent(autojump_clock: MockClock) -> None:
    async with open_toy() as (runtime, _):
        await runtime.load("toy")
        assert [(actor.name, actor.parent, actor.kind) for actor in runtime.statistics()] == [
            ("system", "", "SystemActor"),
            ("device:cpu0", "system", "DeviceActor"),
            ("registry", "system", "ModelRegistryActor"),
            ("queue:toy", "registry", "ModelQueueActor"),
        ]
        system = runtime.system.find("system")
        assert system is not None
        parts = await system.ask(LocateParts())
        assert (parts.device.name, parts.registry.name) == ("device:cpu0", "registry")


async def test_users_end_before_what_they_use(autojump_clock: MockClock) -> None:
    ended: list[str] = []

    def watch(name: str, actor: Actor[Any]) -> None:
        end = actor.on_end

        async def on_end() -> None:
            await end()
            ended.append(name)

        actor.on_end = on_end  # type: ignore[method-assign]

    for way in ("left", "cancelled"):
        ended.clear()
        with trio.move_on_after(5):
            async with open_toy(on_instance=watch) as (runtime, _), trio.open_nursery() as nursery:
                await runtime.load("toy")
                nursery.start_soon(Listener().run, runtime.generate(request("p", 50)))
                await trio.sleep(2.5 if way == "left" else 1000)
                nursery.cancel_scope.cancel()
        assert ended == ["queue:toy", "registry", "device:cpu0", "system"]


async def callers_come_and_go(runtime: Runtime) -> list[Listener]:
    """Twelve seconds of ordinary life."""
    listeners = [Listener() for _ in range(8)]
    async with trio.open_nursery() as nursery:
        for number, listener in enumerate(listeners):
            scope = trio.CancelScope()
            if number % 3 == 2:
                scope.deadline = trio.current_time() + 2.5
            nursery.start_soon(call, runtime, number, listener, scope)
            await trio.sleep(0.75)
    return listeners


async def call(runtime: Runtime, number: int, listener: Listener, scope: trio.CancelScope) -> None:
    try:
        await runtime.load("toy")  # everybody asks the registry
    except TripowerError as error:
        listener.error = error
    else:
        await listener.run(runtime.generate(request(f"p{number}", 2 + number)), scope)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", PARTS)
async def test_a_crash_over_any_message_harms_only_those_who_were_there(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str, after: bool
) -> None:
    for skip in range(200):
        saboteur = Saboteur()
        async with open_toy(members_max=2, on_instance=saboteur.on_instance) as (runtime, backend):
            await warm_up(runtime)
            saboteur.arm(name, skip=skip, after=after)
            for number, listener in enumerate(await callers_come_and_go(runtime)):
                tokens = listener.tokens
                assert tokens == greedy(f"p{number}", len(tokens))
                assert listener.finished is None or len(tokens) == 2 + number
                if listener.error is not None:
                    assert isinstance(listener.error, TripowerError)
                    assert listener.error.code in ("actor_gone", "device_failed")
                    assert listener.error.status in (500, 503)
            await trio.sleep(100)
            await assert_quiet(runtime, backend)
            assert runtime.health().status == "ok"
            if saboteur.armed:
                assert skip >= 8
                return
            assert figures(runtime, name).crashes == 1 or name == "queue:toy"
            await complete(runtime)
    raise AssertionError("the saboteur was never left without a message")


async def test_a_device_that_crashes_again_and_again_ends_the_runtime(autojump_clock: MockClock) -> None:
    saboteur, backend = Saboteur(), RecordingBackend()
    errors: list[BaseException | None] = []
    plan = toy_plan(
        backends={"toy": backend},
        open_port=lambda: InlineLane(lambda job: 1.0),
        on_instance=saboteur.on_instance,
        supervision=Supervision(restarts_max=2),
    )
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="system crashed"), flatten_subgroups=True):
        async with open_actors(plan) as runtime:
            while True:
                saboteur.arm("device:cpu0")
                listener = Listener()
                await listener.run(runtime.generate(request()))
                errors.append(listener.error)
                await trio.sleep(5)
    assert 1 <= len(errors) <= 3 and all(isinstance(error, TripowerError) for error in errors)
    assert all(engine.closed for engine in backend.engines)


async def test_a_queue_that_crashes_again_and_again_takes_the_registry_with_it_and_all_start_anew(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    saboteur = Saboteur()
    async with open_toy(on_instance=saboteur.on_instance) as (runtime, backend):
        await warm_up(runtime)
        for _ in range(4):
            saboteur.arm("queue:toy")
            listener = Listener()
            await listener.run(runtime.generate(request()))
            assert isinstance(listener.error, ActorGone)
            await trio.sleep(5)
        assert figures(runtime, "registry").restarts == 1 and backend.engines[0].closed
        assert runtime.health().status == "ok"
        await complete(runtime)
        await trio.sleep(10)
        await assert_quiet(runtime, backend)


async def test_a_part_that_cannot_be_built_is_told_and_leaves_nothing(autojump_clock: MockClock) -> None:
    class Closing(InlineLane):
        closed = 0

        def close(self, *, wait: bool = True) -> None:
            super().close(wait=wait)
            Closing.closed += 1

    def fail(_device: Any) -> Any:
        raise OSError("no registry")

    with pytest.RaisesGroup(ActorFailed, flatten_subgroups=True):
        async with open_actor_system() as system:
            root = system.spawn(
                lambda: SystemActor(lambda: DeviceActor("cpu0", lambda: Closing(lambda job: 0.0)), fail),
                name="system",
                supervision=Supervision(restarts_max=0),
            )
            with suppress(ActorGone):
                await root.ask(LocateParts())
            await trio.sleep_forever()
    assert Closing.closed == 1
