"""`ps`, `tree`, `where`, `stacktrace` and `stalls` on a toy runtime: what they answer, show and refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from rich.console import Console

from tests.actors.rigs import Listener, open_toy, request, warm_up
from tests.api.serving import COMPLETIONS, request_bytes, serving_toy
from tripower.actors.queueing import Generate
from tripower.actors.runtime import open_actors, toy_plan
from tripower.api.console.text import duration
from tripower.api.console.verb import Subject
from tripower.api.console.verbs import find_verb
from tripower.api.console.verbs.actors import ActorRow, Permits
from tripower.api.console.verbs.where import WhereAnswer
from tripower.runtime.introspection.stalls import StallReport
from tripower.runtime.introspection.task_tree import TaskNode, TaskTree
from tripower.runtime.kernel import Actor, InlineLane, InvalidRequest, LaneJob, NotFound, open_port


async def run(subject: Subject, line: str) -> Any:
    """What a client gets: the answer as it came out of JSON."""
    name, *words = line.split()
    verb = find_verb(name)
    assert verb.run is not None
    return msgspec.json.decode(msgspec.json.encode(await verb.run(subject, words)), type=verb.answer)


def shown(line: str, answer: Any, width: int = 160) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(find_verb(line.split()[0]).show(answer))
    return capture.get()


def every(nodes: tuple[TaskNode, ...]) -> Iterator[TaskNode]:
    for node in nodes:
        yield node
        yield from every(node.children)


async def test_ps_tells_what_each_actor_does_and_who_waits(autojump_clock: object) -> None:
    async with open_toy(members_max=2, waiting_max=4) as (runtime, _), trio.open_nursery() as nursery:
        subject = Subject(runtime=runtime)
        await warm_up(runtime)
        for prompt in "abc":
            nursery.start_soon(Listener().run, runtime.generate(request(prompt, 10)))
        await trio.sleep(3.5)
        rows: list[ActorRow] = await run(subject, "ps")
        assert [(row.name, row.kind, row.parent) for row in rows] == [
            ("system", "SystemActor", ""),
            ("device:cpu0", "DeviceActor", "system"),
            ("registry", "ModelRegistryActor", "system"),
            ("queue:toy", "ModelQueueActor", "registry"),
        ]
        queue = rows[-1]
        assert (queue.state, queue.permits) == ("idle", Permits(2, 2, 1, 4)) and queue.handled > 0
        assert await run(subject, "ps queue:toy") == [queue]
        assert (rows[1].job, rows[1].job_seconds) == ("steps toy", 2.5)
        told = shown("ps", rows)
        assert "steps toy  2.5 s" in told and "queue:toy" in told and "2/2" in told and "1/4" in told
        with pytest.raises(NotFound) as caught:
            await run(subject, "ps nobody")
        assert caught.value.code == "actor_not_found"
        await trio.sleep(100)


async def test_ps_tells_how_long_a_message_has_been_handled_and_how_long_it_may_be(autojump_clock: object) -> None:
    def on_instance(name: str, actor: Actor[Any]) -> None:
        handle = actor.on_message

        async def slow(message: Any) -> Any:
            if isinstance(message, Generate):
                await trio.sleep(5)
            return await handle(message)

        actor.on_message = slow  # type: ignore[method-assign]

    async with open_toy(on_instance=on_instance) as (runtime, _), trio.open_nursery() as nursery:
        began = await warm_up(runtime)
        nursery.start_soon(Listener().run, runtime.generate(request(), deadline=began + 30))
        await trio.sleep(3)
        (queue,) = await run(Subject(runtime=runtime), "ps queue:toy")
        assert (queue.state, queue.message, queue.handling_seconds, queue.deadline_left) == ("handling", "Generate", 3.0, 27.0)
        assert "handling  Generate  3 s  27 s" in shown("ps", [queue])
        tree = await run(Subject(runtime=runtime), "tree")
        (node,) = (node for node in every(tree.roots) if node.name == "queue:toy")
        assert node.place.startswith(__file__) and "Generate for 3 s" in shown("tree", tree, width=400)
        await trio.sleep(50)


async def test_tree_shows_what_ends_with_what(autojump_clock: object) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        subject = Subject(runtime=runtime)
        await warm_up(runtime)
        nursery.start_soon(Listener().run, runtime.generate(request("a", 10)), name="caller")
        await trio.sleep(3.5)
        tree: TaskTree = await run(subject, "tree")
        nodes = {node.name: node for node in every(tree.roots)}
        assert [child.name for child in nodes["system"].children] == ["device:cpu0", "registry", "system/watchdog"]
        assert [child.name for child in nodes["device:cpu0"].children] == ["device:cpu0/port", "device:cpu0/watch"]
        assert "queue:toy" in {child.name for child in nodes["registry"].children}
        assert nodes["caller"].place.startswith("actors/generation.py:")
        told = shown("tree", tree)
        assert "├── " in told and "caller  actors/generation.py:" in told and "4 actors" in told
        assert (await run(subject, "tree --all")).tasks >= tree.tasks
        with pytest.raises(InvalidRequest):
            await run(subject, "tree everything")
        await trio.sleep(100)


async def test_where_shows_our_own_lines_and_with_all_the_others_too(autojump_clock: object) -> None:
    async with open_toy() as (runtime, _), trio.open_nursery() as nursery:
        subject = Subject(runtime=runtime)
        await warm_up(runtime)
        nursery.start_soon(Listener().run, runtime.generate(request("a", 10)), name="request r-1")
        await trio.sleep(3.5)
        answer: WhereAnswer = await run(subject, "where r-1")
        (stack,) = answer.stacks
        assert answer.lane is None and all(frame.own for frame in stack.frames)
        assert (stack.frames[0].file, stack.frames[-1].function) == ("actors/generation.py", "Listener.run")
        assert "receive" in stack.frames[0].text
        whole: WhereAnswer = await run(subject, "where r-1 --all")
        assert len(whole.stacks[0].frames) > len(stack.frames) and not whole.stacks[0].frames[0].own
        told = shown("where", whole).splitlines()
        assert told[0].startswith("request r-1  waiting") and told[1].strip() == str(stack.frames[0])
        device: WhereAnswer = await run(subject, "where device:cpu0")
        assert [stack.name for stack in device.stacks] == ["actor:device:cpu0", "device:cpu0/port", "device:cpu0/watch"]
        assert device.lane is not None and device.lane.job == "steps toy" and device.lane.thread is None
        assert "works on steps toy" in shown("where", device)
        with pytest.raises(InvalidRequest):
            await run(subject, "where")
        with pytest.raises(NotFound):
            await run(subject, "where nobody")
        assert "queue:toy" in find_verb("where").complete(subject)
        await trio.sleep(100)


async def test_connections_and_requests_stand_below_the_listener_and_are_found_by_their_id() -> None:
    plan = toy_plan(open_port=lambda: InlineLane(lambda job: 0.02 if job.name.startswith("steps") else 0.0))
    async with serving_toy(plan) as server:
        subject = Subject(runtime=server.actors)
        async with server.client() as client:
            body = {"model": "toy", "prompt": "a", "max_tokens": 1000, "stream": True, "ignore_eos": True}
            await client.send(request_bytes(COMPLETIONS, body, headers={"x-request-id": "r-7"}))
            await client.read_until(b"data: ")
            tree = await run(subject, "tree")
            (api,) = (node for node in every(tree.roots) if node.name == "api")
            listener = next(child for child in api.children if child.name == "api/listener")
            connection = next(child for child in listener.children if child.name == "connection")
            assert [child.name for child in connection.children] == ["request r-7"]
            (stack,) = (await run(subject, "where r-7")).stacks
            assert stack.name == "request r-7" and all(frame.file.startswith(("api/", "actors/")) for frame in stack.frames)


async def test_where_a_device_is_shows_what_its_thread_does() -> None:
    begun, end = threading.Event(), threading.Event()
    async with open_actors(toy_plan(open_port=lambda: open_port("stuck-test"))) as runtime:
        subject = Subject(runtime=runtime)

        def work() -> Iterator[None]:
            begun.set()
            end.wait()
            yield

        device = next(cell for cell in runtime.system.cells() if cell.name == "device:cpu0")._actor
        assert device is not None
        job: LaneJob = device._submit("stuck", work, lambda result, error: None)  # type: ignore[attr-defined]
        begun.wait()
        try:
            answer: WhereAnswer = await run(subject, "where device:cpu0")
            threads = await run(subject, "stacktrace")
        finally:
            end.set()
        lane = answer.lane
        assert lane is not None and lane.thread is not None and job.name == lane.job == "stuck"
        assert lane.thread.name == "tripower-lane-stuck-test" and lane.job_seconds >= 0
        assert lane.thread.frames[0].function == work.__qualname__
        assert "end.wait()" in shown("where", answer)
        assert {"MainThread", "tripower-lane-stuck-test"} <= {stack.name for stack in threads.stacks}
        assert "tripower-lane-stuck-test  running" in shown("stacktrace", threads)


async def test_stalls_are_watched_while_they_are_wanted() -> None:
    async with open_actors(toy_plan(hold_seconds=0.25)) as runtime:
        subject = Subject(runtime=runtime)
        report: StallReport = await run(subject, "stalls")
        assert report.on and report.threshold_seconds == 0.25
        report = await run(subject, "stalls on 50")
        assert report.on and report.threshold_seconds == 0.05
        assert "on, for steps longer than 50 ms" in shown("stalls", report)
        report = await run(subject, "stalls off")
        assert not report.on and "`stalls on`" in shown("stalls", report)
        assert (await run(subject, "stalls clear")).steps == 0
        assert (await run(subject, "stalls on")).threshold_seconds == 0.1
        for wrong in ("on 1", "on 1e3", "on 99999999", "off 3", "twice"):
            with pytest.raises(InvalidRequest):
                await run(subject, f"stalls {wrong}")
    assert not runtime.stalls.on  # it ends with its runtime


def test_durations_are_short() -> None:
    told = {0.0: "0 ms", 0.0123: "12 ms", 1.0: "1 s", 3.456: "3.46 s", 99.0: "99 s", 100.0: "1 min 40 s", 7500.0: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in told} == told and duration(None) == ""
