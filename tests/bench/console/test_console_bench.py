"""`tripower bench console`: it runs and reports, and its instrument tells the console's steps from the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tripower.bench.console import command
from tripower.bench.console.holds import Holds
from tripower.bench.console.page import NAMED


@pytest.mark.long
def test_a_quick_run_has_all_cells(run_quick: Callable[..., dict[str, Any]]) -> None:
    report = run_quick(command.main, ["--model", "toy:20000"])
    names = [cell["name"] for cell in report["cells"]]
    for verb in ("ps", "tree", "requests", "overview"):
        assert f"{verb} of 20 requests" in names and f"{verb}, longest hold of the loop" in names
    for name in ("ask, recorded", "tokens, recorded", "attach to first answer", "tripower console -c", "page weight"):
        assert name in names
    assert all(cell["ours"] > 0 for cell in report["cells"])


async def test_the_steps_of_the_console_are_told_from_all_others() -> None:
    holds = Holds()

    async def hold(seconds: float) -> None:
        holding = time.thread_time() + seconds
        while time.thread_time() < holding:
            pass

    holds.install()
    try:
        await trio.lowlevel.checkpoint()
        holds.take()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, 0.003, name="console/ps")
            nursery.start_soon(hold, 0.006, name="queue:toy")
            nursery.start_soon(hold, 0.02, name="console/py 1")
        ours, others = holds.take()
        assert ours >= 0.003 and others >= 0.006
        assert others >= 0.02, "the line that measures counts as another task"
        assert holds.take()[0] < ours, "each time begins anew"
    finally:
        holds.remove()


def test_what_a_page_names_is_found() -> None:
    page = b"""<link rel=stylesheet href="/ui/page.css"><script src='/ui/a.js' defer></script><a href="#status">x</a>"""
    assert NAMED.findall(page) == [b"/ui/page.css", b"/ui/a.js"]
