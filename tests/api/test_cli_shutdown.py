"""How a service ends when its device does not."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import trio

from tests.api.children import environment
from tests.api.test_cli_serve import serving, streaming
from tripower.api.cli import exit_codes
from tripower.api.cli.shutdown import Shutdown, end_within


def test_a_block_that_hangs_ends_with_the_process(tmp_path: Path) -> None:
    program = "import threading\nfrom tripower.api.cli.shutdown import end_within\nwith end_within(0.05):\n    threading.Event().wait()\n"
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert finished.returncode == exit_codes.FORCED
    assert finished.stderr == "tripower: the device does not answer; the process ends without it\n"


def test_a_block_that_ends_in_time_is_left_alone() -> None:
    with end_within(3600):
        pass


async def test_the_first_signal_cancels_work_also_work_that_begins_later() -> None:
    shutdown = Shutdown()
    to_shutdown, signals = trio.open_memory_channel[int](5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shutdown.watch, signals)
        with shutdown.until_asked() as scope:
            to_shutdown.send_nowait(signal.SIGTERM)
            await trio.sleep_forever()
        assert scope.cancelled_caught
        with shutdown.until_asked() as later:
            await trio.lowlevel.checkpoint()
        assert later.cancelled_caught
        assert not shutdown.at_once.is_set()
        to_shutdown.send_nowait(signal.SIGTERM)
        await shutdown.at_once.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.long
def test_a_step_that_never_ends_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The toy sleeps in native code, where no flag reaches it: the process ends after the grace."""
    with serving(tmp_path, "stuck=toy:300000000") as (child, url, _):
        with streaming(url, "stuck"):
            for _ in range(50):  # its first token comes with the prompt; by now the step after it sleeps
                urllib.request.urlopen(f"{url}/health", timeout=60).close()
            child.process.send_signal(signal.SIGTERM)
            child.wait_for_error("a second signal stops at once")
            child.process.send_signal(signal.SIGTERM)
            assert child.end() == exit_codes.FORCED
        assert any("the device does not answer" in line for line in child.errors)
