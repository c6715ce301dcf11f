"""`py`: what a line may do, and that nothing it does reaches the server."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tripower.actors.runtime import open_actors, toy_plan
from tripower.api.console.repl import stepping
from tripower.api.console.repl.answer import LineAnswer
from tripower.api.console.repl.source import SOURCE_CHARACTERS_MAX, compile_line, is_incomplete
from tripower.api.console.verb import Subject
from tripower.api.console.verbs.python import VERBS, parse_line, run_line
from tripower.runtime.kernel import InlineLane, InvalidRequest


@asynccontextmanager
async def open_subject() -> AsyncIterator[Subject]:
    async with open_actors(toy_plan(open_port=lambda: InlineLane(lambda job: 0.0))) as runtime:
        yield Subject(runtime=runtime)


async def py(subject: Subject, line: str) -> LineAnswer:
    return await run_line(subject, [line])


async def test_an_expression_is_answered_with_its_value_and_what_was_printed(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        assert await py(subject, "1 + 1") == LineAnswer(value="2")
        assert await py(subject, "print('a'); print('b', end=''); 'c'") == LineAnswer(output="a\nb", value="'c'")
        assert await py(subject, "None") == LineAnswer()
        assert await py(subject, "_ * 2") == LineAnswer(value="'cc'"), "None does not count as the last value"


async def test_a_line_awaits_and_names_are_kept_for_the_connection_only(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        assert not (await py(subject, "began = trio.current_time(); await trio.sleep(3)")).error
        assert (await py(subject, "trio.current_time() - began")).value == "3.0"
        assert (await py(subject, "[card.name for card in await runtime.models()]")).value == "['toy']"
        assert (await py(subject, "async with trio.open_nursery(): pass\n[i async for i in gen()]")).error.endswith(
            "NameError: name 'gen' is not defined"
        )
        other = Subject(runtime=subject.runtime)
        assert "NameError: name 'began' is not defined" in (await py(other, "began")).error


async def test_what_is_no_text_is_answered_all_the_same(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        answer = await py(subject, "print(chr(0xd800)); chr(0xdfff)")
        assert answer.output == "?\n" and msgspec.json.encode(answer)
        assert msgspec.json.encode(await py(subject, "raise ValueError(chr(0xd800))"))


async def test_actors_are_found_by_name(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        await subject.runtime.load("toy")
        assert (await py(subject, "actors['queue:toy'].details.live")).value == "0"
        assert "queue:toy" in (await py(subject, "actors")).value
        assert "no actor is called 'nobody'; there are system" in (await py(subject, "actors['nobody']")).error


async def test_functions_and_blocks_of_several_lines(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        await py(
            subject, 'async def twice(n):\n    "Doc."\n    for _ in range(2):\n        await trio.sleep(1)\n    return n * 2\n'
        )
        assert (await py(subject, "await twice(4), twice.__doc__")).value == "(8, 'Doc.')"
        assert (await py(subject, "(lambda n: n and [m for m in range(n) if m])(3)")).value == "[1, 2]"
        assert (await py(subject, "import functools; functools.reduce(lambda a, b: a + b, range(5))")).value == "10"


@pytest.mark.parametrize(
    ("source", "incomplete"),
    [
        ("1 + 1", False),
        ("x = (1,", True),
        ("if True:", True),
        ("if True:\n    pass", True),
        ("if True:\n    pass\n", False),
        ("if True: pass", False),
        ("x = 1 +\\\n  1", False),
        ("x = [\n  1]", False),
        ("async with a as b:", True),
        ("await x", False),
        ("'''", True),
        ("@decorated", True),
        ("x = = 1", False),
        ("x\0", False),
        ("", False),
    ],
)
def test_what_is_incomplete(source: str, incomplete: bool) -> None:
    assert is_incomplete(source, typed=True) is incomplete


async def test_an_incomplete_line_waits_for_more_where_more_can_come(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        assert await py(subject, "--more if True:") == LineAnswer(incomplete=True)
        assert await py(subject, "--more if True:\n    print(1)\n") == LineAnswer(output="1\n")
        with pytest.raises(InvalidRequest, match="not complete"):
            await py(subject, "if True:")
        assert await py(subject, "if True:\n    print(1)") == LineAnswer(output="1\n"), "nothing more can come"


@pytest.mark.parametrize("wrong", ["", "  ", "--more ", "--seconds 0 x", "--seconds nan x", "--seconds 601 x", "--seconds x 1"])
def test_what_is_no_line(wrong: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_line(wrong)


def test_options_come_before_the_line() -> None:
    assert parse_line("--seconds 20 --more   x") == ("  x", 20.0, True)
    assert parse_line("  x -- y ") == ("x -- y", 5.0, False)
    with pytest.raises(InvalidRequest, match="longer than"):
        parse_line("x" * (SOURCE_CHARACTERS_MAX + 1))


async def test_an_exception_is_answered_with_the_lines_own_frames(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        await py(subject, "def divide(n):\n    return n / 0\n")
        error = (await py(subject, "divide(1)")).error
        assert error.splitlines()[0] == "Traceback (most recent call last):"
        assert error.endswith("ZeroDivisionError: division by zero")
        assert 'File "<py 1>", line 2, in divide\n    return n / 0\n           ~~^~~\n' in error
        assert 'File "<py 2>", line 1, in <module>' in error and "divide(1)" in error
        assert "session.py" not in error and "stepping.py" not in error
        assert (await py(subject, "x = = 1")).error.endswith("SyntaxError: invalid syntax")
        assert "SyntaxError" in (await py(subject, "return 1")).error


@pytest.mark.parametrize(
    "raising",
    [
        "raise SystemExit(3)",
        "exit()",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "import sys; sys.exit('bye')",
        "raise BaseException",
    ],
)
async def test_no_exception_of_a_line_passes_on(raising: str, autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        for line in (raising, f"await trio.sleep(1); {raising}", f"async with trio.open_nursery() as n: {raising}"):
            answer = await py(subject, line)
            assert answer.error
        assert (await py(subject, "1")).value == "1"
        assert not sys.stdin.closed


LOOPS = [
    "while True: pass",
    "for _ in iter(int, 1): pass",
    "[0 for _ in iter(int, 1)]",
    "any(0 for _ in iter(int, 1))",
    "any(map(lambda _: 0, iter(int, 1)))",
    "def f():\n    try:\n        f()\n    except BaseException:\n        f()\nf()",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass\n",
    "class Endless:\n    def __repr__(self):\n        while True: pass\nEndless()",
    "async with trio.open_nursery() as nursery:\n    async def spin():\n        while True: pass\n    nursery.start_soon(spin)\n",
    "await trio.sleep(0)\nwhile True: pass",
]


@pytest.mark.parametrize("line", LOOPS)
async def test_a_line_that_loops_for_ever_is_cut_off(line: str) -> None:
    async with open_subject() as subject:
        answer = await py(subject, line)
        assert "held the loop for more than 50 ms" in answer.error
        assert await subject.runtime.models(), "everybody else goes on"
        assert (await py(subject, "1")).value == "1"


async def test_a_library_that_loops_for_ever_is_cut_off_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "FOREIGN_SECONDS", 0.05)
    async with open_subject() as subject:
        for line in ("exec('while True: pass')", "import statistics, itertools; statistics.mean(itertools.count())"):
            answer = await py(subject, line)
            assert "held the loop for more than" in answer.error
        assert sys.gettrace() is None or "stepping" not in repr(sys.gettrace())


async def test_nothing_is_raised_in_trios_code_or_ours(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(stepping, "FOREIGN_SECONDS", -1.0)  # any line of foreign Python is over its time at once
    async with open_subject() as subject:
        assert (await py(subject, "await trio.sleep(1); runtime.health().status")).value == "'ok'"
        assert (
            "CutOff"
            in (
                await py(
                    subject, "import fractions\ntry:\n    fractions.Fraction(1, 3)\nexcept BaseException as e: print(repr(e))\n"
                )
            ).output
        )


async def test_a_line_ends_at_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        began = trio.current_time()
        assert (await py(subject, "await trio.sleep_forever()")).error.startswith("cut off: it was not over after 5 s")
        assert trio.current_time() == began + 5
        assert (await py(subject, "--seconds 20 await trio.sleep(19); 1")).value == "1"
        assert (await py(subject, "--seconds 2 while True: await trio.sleep(0.1)")).error.startswith("cut off")


async def test_a_line_that_takes_its_cancellation_for_itself_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    swallowing = "while True:\n    try:\n        await trio.sleep(1)\n    except BaseException: pass\n"
    async with open_subject() as subject:
        assert "cut off" in (await py(subject, swallowing)).error


async def test_a_cancelled_caller_ends_its_line(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        with trio.move_on_after(1) as scope:
            await py(subject, "try:\n    await trio.sleep_forever()\nfinally:\n    left = True\n")
        assert scope.cancelled_caught
        assert (await py(subject, "left")).value == "True"


async def test_a_scope_left_open_harms_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        assert (await py(subject, "trio.CancelScope().__enter__(); None")).error
        assert (await py(subject, "1")).value == "1"


async def test_output_and_values_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        answer = await py(subject, "print('x' * 100_000); 'y' * 100_000")
        assert answer.output.startswith("x") and answer.output.endswith("\n… 34465 more characters")
        assert len(answer.value) < 66_000 and answer.value.endswith("more characters")


async def test_only_the_line_itself_prints_to_the_console(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    other = threading.Thread(target=print, args=("from another thread",))
    async with open_subject() as subject:
        subject.state["thread"] = other
        answer = await py(subject, "thread = subject.state['thread']; thread.start(); thread.join(); print('from the line')")
        assert answer.output == "from the line\n"
        assert capsys.readouterr().out == "from another thread\n"
        child = "async def say(): print('from a task')\nasync with trio.open_nursery() as n: n.start_soon(say)\n"
        assert (await py(subject, child)).output == "from a task\n"


async def test_a_line_reads_nothing_from_the_servers_terminal(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        assert "EOFError" in (await py(subject, "input('? ')")).error


async def test_python_can_be_turned_off(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        subject.python = False
        with pytest.raises(InvalidRequest, match="console.python") as refused:
            await py(subject, "1")
        assert refused.value.code == "python_off"


async def test_every_line_that_runs_is_logged(autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tripower.console")
    async with open_subject() as subject:
        await py(subject, "1 +\\\n 1")
        await py(subject, "--more if True:")
    assert [record.getMessage() for record in caplog.records if record.name == "tripower.console"] == [r"py '1 +\\\n 1'"]


async def test_lines_of_one_connection_may_overlap(autojump_clock: trio.testing.MockClock) -> None:
    async with open_subject() as subject:
        answers: dict[str, LineAnswer] = {}

        async def ask(name: str, seconds: int) -> None:
            answers[name] = await py(subject, f"await trio.sleep({seconds}); print('{name}'); '{name}'")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "slow", 3)
            nursery.start_soon(ask, "fast", 1)
        assert answers == {name: LineAnswer(output=f"{name}\n", value=f"'{name}'") for name in ("slow", "fast")}


def test_the_checks_change_no_meaning() -> None:
    """A program with everything in it that gets a check gives what it gives without."""
    source = """
def gen(n):
    'Doc.'
    while n:
        yield n
        n -= 1
    else:
        yield 'end'
pairs = {(a, b) for a in gen(2) for b in range(2) if b}
nested = [[c for c in gen(1)] for _ in range(2)]
table = {k: (lambda v=k: v)() for k in gen(1)}
"""
    plain: dict[str, Any] = {}
    checked: dict[str, Any] = {"__builtins__": {**vars(__import__("builtins")), "__tripower_check__": lambda: True}}
    exec(source, plain)  # noqa: S102
    exec(compile_line(source, "<py 1>"), checked)  # noqa: S102
    for name in ("pairs", "nested", "table"):
        assert plain[name] == checked[name]
    assert checked["gen"].__doc__ == "Doc."


def test_the_verb_takes_the_line_as_it_was_typed() -> None:
    (verb,) = VERBS
    assert verb.name == "py" and verb.raw
