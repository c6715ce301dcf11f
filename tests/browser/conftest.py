"""What the tests with a real browser share: the browser, pages of it, and servers to look at.

The browser is Chromium as the system has it (Debian: `apt-get install chromium`); `TRIPOWER_TEST_CHROMIUM` names another program. Where
there is none the tests are skipped with that reason.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.api.children import running
from tests.api.fake_runtime import FakeRuntime, Script
from tests.api.serving import serving
from tests.browser.chromium import VARIABLE, Browser, Page, find_chromium, open_browser

SERVED_SECONDS = 600.0
"""Longer than any test."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip(f"no Chromium is installed: `apt-get install chromium`, or name one in {VARIABLE}")
    with open_browser(program, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of its own. The test fails when the browser had anything to complain about that it did not take out of `problems`."""
    with browser.page() as opened:
        yield opened
        opened.evaluate("1")  # what was told meanwhile is heard with this answer
        assert opened.problems == []


@contextmanager
def child(home: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of `tripower serve` on a free port, once it is ready."""
    with running(home, "serve", *arguments, "--port", "0", variables=variables) as process:
        match = re.search(r"http://[^\s]+", process.read_until("curl "))
        assert match is not None
        yield match[0]


@pytest.fixture(scope="session")
def smollm2_url(smollm2_path: Path, kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    variables = {"TRIPOWER_KERNEL_CACHE": str(kernel_cache)}
    with child(tmp_path_factory.mktemp("smollm2"), f"smollm2={smollm2_path}", variables=variables) as url:
        yield url


@pytest.fixture(scope="session")
def slow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The toy, at 20 ms a token, with two seats."""
    with child(tmp_path_factory.mktemp("slow"), "slow=toy:20000", "--set", "scheduler.batch_members=2") as url:
        yield url


@attrs.frozen
class Scripted:
    """A server whose answers are written down beforehand, in a thread of its own."""

    url: str
    runtime: FakeRuntime


@contextmanager
def scripted(*scripts: Script) -> Iterator[Scripted]:
    """Serve these answers, one after the other; the last one again and again."""
    ready, done = threading.Event(), trio.Event()
    found: list[tuple[Scripted, trio.lowlevel.TrioToken]] = []

    async def main() -> None:
        try:
            async with serving(*scripts, patience=SERVED_SECONDS) as server:
                found.append((Scripted(server.url, server.runtime), trio.lowlevel.current_trio_token()))
                ready.set()
                await done.wait()
                await server.api.stop()
        finally:
            ready.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    ready.wait()
    [(server, token)] = found
    try:
        yield server
    finally:
        token.run_sync_soon(done.set)
        thread.join()
