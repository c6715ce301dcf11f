"""Who owns a request: no generator of ours yields inside a nursery or a cancel scope, and a consumer that fails ends its own stream only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.test_layout import LAYERS, sources
from tripower.actors.queueing import QueueStatistics
from tripower.api.embedding import EmbeddedRuntime, open_runtime
from tripower.runtime.store import Store

SCOPES = {"open_nursery", "CancelScope", "move_on_after", "move_on_at", "fail_after", "fail_at"}
MANAGERS = {"asynccontextmanager", "contextmanager"}
"""Their generators are resumed by the `with` statement that entered them, in the same task, whatever happens inside."""


def yields_across_scopes(tree: ast.AST) -> Iterator[int]:
    """Lines that yield inside a scope of Trio, in generators that anybody may leave half-used."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef):
            continue
        decorators = {name.id for each in function.decorator_list for name in ast.walk(each) if isinstance(name, ast.Name)}
        if not decorators & MANAGERS:
            yield from _inside(function.body, scoped=False)


def _inside(nodes: list[ast.stmt] | list[ast.AST], *, scoped: bool) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue  # another function
        if scoped and isinstance(node, ast.Yield | ast.YieldFrom):
            yield node.lineno
        opens = isinstance(node, ast.With | ast.AsyncWith) and bool(SCOPES & _called(node))
        yield from _inside(list(ast.iter_child_nodes(node)), scoped=scoped or opens)


def _called(node: ast.With | ast.AsyncWith) -> set[str]:
    names = [each for item in node.items for each in ast.walk(item.context_expr)]
    return {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in names
        if isinstance(each, ast.Attribute | ast.Name)
    }


def lines_of(path: Path) -> list[int]:
    text = path.read_text(encoding="utf-8")
    return list(yields_across_scopes(ast.parse(text))) if "yield" in text else []


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "backends"])  # which has no Trio
def test_no_generator_yields_inside_a_nursery_or_a_cancel_scope(layer: str) -> None:  # BB-004
    found = [f"{path}:{line}" for path in sources(layer) for line in lines_of(path)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("async def f():\n async with trio.open_nursery() as n:\n  yield 1", [3]),
        ("async def f():\n with trio.move_on_after(1):\n  for _ in x:\n   yield 1\n yield 2", [4]),
        ("@asynccontextmanager\nasync def f():\n async with open_nursery():\n  yield 1", []),
        ("async def f():\n with CancelScope():\n  async def g():\n   yield 1", []),
    ],
)
def test_the_rule_sees_what_it_should(text: str, lines: list[int]) -> None:
    assert list(yields_across_scopes(ast.parse(text))) == lines


# BB-004
@pytest.mark.parametrize("taken", [0, 1, 2, 5])
async def test_a_consumer_that_raises_ends_its_own_stream_and_no_other(taken: int, tmp_path: Path) -> None:
    texts: list[str] = []
    options = {"max_tokens": 60, "ignore_eos": True, "seed": 5}

    async def listen(runtime: EmbeddedRuntime) -> None:
        texts.append("".join([event.text async for event in runtime.complete("slow", "abc", **options)]))  # type: ignore[arg-type]

    with trio.fail_after(20):
        async with open_runtime(models=["slow=toy:2000"], store=Store(tmp_path / "home")) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, runtime)
                with pytest.raises(ZeroDivisionError):
                    await take(runtime, taken)
            await listen(runtime)
            (queue,) = [each.details for each in runtime.statistics() if isinstance(each.details, QueueStatistics)]
            assert (queue.cancelled, queue.completed, queue.live) == (1, 2, 0)
    assert texts[0] == texts[1] and len(texts[0]) > 50


async def take(runtime: EmbeddedRuntime, count: int) -> None:
    """Listen to a stream for so many events, then fail without closing it."""
    async for _ in runtime.complete("slow", "abc", max_tokens=1000, ignore_eos=True):
        if not count:
            raise ZeroDivisionError
        count -= 1
