"""The tree of tasks and actors: what is in it, what is told once, and that reading it never holds the loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec
import pytest
import trio
import trio.testing

from tripower.runtime.introspection import turns as module
from tripower.runtime.introspection.describe import LINES_MAX, describe
from tripower.runtime.introspection.task_tree import TaskNode, TaskTree, lines, task_tree
from tripower.runtime.introspection.where import STACKS_MAX, where, where_thread, where_threads
from tripower.runtime.kernel import (
    LATER,
    Actor,
    Ask,
    Message,
    NotFound,
    Strategy,
    Supervision,
    open_actor_system,
)


class Keep(Ask[None], frozen=True):
    """Answered when the actor ends."""


class Wait(Ask[None], frozen=True):
    """Handled until it is cancelled."""


class Break(Message, frozen=True):
    """Crash."""


class Keeper(Actor[Keep | Wait | Break]):
    """Has a task of its own and a child."""

    child = "child"

    async def on_start(self) -> None:
        self.start_soon(trio.sleep_forever, name="work")
        if self.child:
            self.spawn(Childless, name=self.child)

    async def on_message(self, message: Keep | Wait | Break) -> object:
        match message:
            case Keep():
                return LATER
            case Wait():
                await trio.sleep_forever()
        raise RuntimeError("as asked")


class Childless(Keeper):
    child = ""


def every(nodes: tuple[TaskNode, ...]) -> Iterator[TaskNode]:
    for node in nodes:
        yield node
        yield from every(node.children)


def find(tree: TaskTree, name: str) -> TaskNode:
    (found,) = (node for node in every(tree.roots) if node.name == name)
    return found


async def test_actors_stand_below_their_parents_with_their_own_tasks_and_whoever_asks_them_says_so() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn(Keeper, name="parent")
        await trio.testing.wait_all_tasks_blocked()

        nursery.start_soon(ref.ask, Keep(), name="early")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ref.ask, Wait(), name="late")
        await trio.testing.wait_all_tasks_blocked()
        tree = await task_tree(system)
        parent = find(tree, "parent")
        assert [(child.name, child.actor is not None) for child in parent.children] == [("child", True), ("parent/work", False)]
        assert parent.actor is not None
        assert (parent.actor.kind, parent.actor.state, parent.actor.message) == ("Keeper", "handling", "Wait")
        assert parent.state == "waiting" and parent.place.startswith(__file__) and parent.place.endswith("in Keeper.on_message")
        assert [child.name for child in find(tree, "child").children] == ["child/work"]
        assert find(tree, "early").asks == "parent Keep" and find(tree, "late").asks == "parent Wait"
        assert (tree.actors, msgspec.json.decode(msgspec.json.encode(tree), type=TaskTree)) == (2, tree)
        assert sum(1 for node in every(tree.roots) if node.state == "running") == 1  # this test
        nursery.cancel_scope.cancel()


async def test_an_actor_that_failed_for_good_stays_in_the_tree() -> None:
    async with open_actor_system() as system:
        ref = system.spawn(Childless, name="fragile", supervision=Supervision(strategy=Strategy.STOP))
        await ref.tell(Break())
        await trio.testing.wait_all_tasks_blocked()
        node = find(await task_tree(system), "fragile")
        assert node.state == "ended" and node.actor is not None and node.actor.state == "failed"


async def test_tasks_that_are_alike_are_told_once_with_their_number() -> None:
    async def connection(number: int) -> None:
        async with trio.open_nursery() as below:
            below.start_soon(trio.sleep_forever, name=f"request {number}")
            if number == 7:
                below.start_soon(trio.sleep_forever, name="extra")
            await trio.sleep_forever()

    async with open_actor_system() as system, trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(connection, number, name="connection")
        await trio.testing.wait_all_tasks_blocked()
        tree = await task_tree(system)
        told = [node for node in every(tree.roots) if node.name == "connection"]
        assert sorted((node.alike, len(node.children)) for node in told) == [(0, 2), (18, 1)]
        whole = await task_tree(system, everything=True)
        assert sum(node.name == "connection" for node in every(whole.roots)) == 20
        assert sum(1 for _ in every(whole.roots)) == whole.tasks == tree.tasks
        assert any(node.name.startswith("<") for node in whole.roots) and not any(
            node.name.startswith("<") for node in tree.roots
        )
        text = "\n".join(lines(tree.roots))
        assert "(and 18 more like it)" in text and "└─ request" in text
        nursery.cancel_scope.cancel()


def pieces_between_turns(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """A clock by which so many pieces of a look take as long as the loop may be held."""
    ticks = count()
    monkeypatch.setattr(module, "now", lambda: next(ticks) * module.HOLD_SECONDS / (pieces + 0.5))


async def test_reading_a_thousand_tasks_lets_everybody_else_run_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces_between_turns(monkeypatch, 10)
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with open_actor_system() as system, trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(trio.sleep_forever, name="alike")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(neighbour)
        before, tree = turns, await task_tree(system)
        assert tree.tasks > 1000
        assert turns - before >= 1000 // 12
        before, stacks = turns, await where(system, "alike")
        assert len(stacks.stacks) == STACKS_MAX and stacks.more == 1000 - STACKS_MAX and turns - before > STACKS_MAX
        nursery.cancel_scope.cancel()


async def test_tasks_that_end_while_the_tree_is_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces_between_turns(monkeypatch, 10)
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as victims:
                for _ in range(200):
                    victims.start_soon(trio.sleep_forever, name="victim")
                await trio.testing.wait_all_tasks_blocked()

                async def end() -> None:
                    await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
                    scope.cancel()

                async def read() -> None:
                    tree = await task_tree(system, everything=True)
                    seen.append(sum(node.name == "victim" for node in every(tree.roots)))

                seen: list[int] = []
                nursery.start_soon(read)
                nursery.start_soon(end)
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < seen[0] < 200


async def test_an_actor_is_looked_up_with_its_tasks_and_a_task_by_the_end_of_its_name() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        system.spawn(Keeper, name="parent")
        nursery.start_soon(trio.sleep_forever, name="request abc-1")
        await trio.testing.wait_all_tasks_blocked()
        stacks = (await where(system, "parent")).stacks
        assert [stack.name for stack in stacks] == ["actor:parent", "parent/work"]
        assert stacks[0].state == "waiting" and stacks[0].frames[-1].function == "Cell.run"
        assert [stack.name for stack in (await where(system, "parent/work")).stacks] == ["parent/work"]
        assert sorted(stack.name for stack in (await where(system, "work")).stacks) == ["child/work", "parent/work"]
        assert [stack.name for stack in (await where(system, "abc-1")).stacks] == ["request abc-1"]
        with pytest.raises(NotFound, match="did you mean parent") as caught:
            await where(system, "parnt")
        assert caught.value.code == "task_not_found"
        nursery.cancel_scope.cancel()


async def test_threads_are_found_by_their_number() -> None:
    threads = await where_threads()
    assert "MainThread" in {stack.name for stack in threads.stacks}
    assert await where_thread(0) is None


async def test_a_description_is_bounded_text_without_what_was_said() -> None:
    async with open_actor_system() as system, trio.open_nursery() as nursery:
        system.spawn(Keeper, name="parent")
        for number in range(LINES_MAX):
            nursery.start_soon(trio.sleep_forever, name=f"different{number}")
        await trio.testing.wait_all_tasks_blocked()
        told = (await describe(system)).split("\n")
        assert len(told) == LINES_MAX and told[-1].startswith("and ") and told[0] == "actors:"
        assert any(line.startswith("  parent idle, inbox 0/64") for line in told)
        nursery.cancel_scope.cancel()
