"""Try a pair in a child process before this one opens it: a wrong struct layout then kills the child and never the server.

The answer holds for the bytes of the two files, so it is remembered in this process by their digests. The child is watched a moment
at a time, so that whoever shares the lane gets a turn, and it is killed when its time is over or the load is stopped.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from tripower.backends.llamacpp.pair import Pair, digest, incompatible

COMMAND = (sys.executable, "-m", "tripower.backends.llamacpp.rehearsal")
SECONDS_MAX = 60.0
"""Far more than it takes; a machine that swaps may need some of it."""
GLANCE_SECONDS = 0.005
COMPLAINT_BYTES_MAX = 300

_answers: dict[tuple[str, str], ProbeReport] = {}


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pair that works on this machine."""

    version: str
    """What the library calls its version."""
    system: str
    """The processor features that it was built for."""
    gpu: bool
    library_sha256: str = ""
    declarations_sha256: str = ""


def probe(pair: Pair) -> Generator[None, None, ProbeReport]:
    """Return what the child found; yield at boundaries a few milliseconds apart. Takes a second the first time.

    Raises `ModelRefused` (`native_incompatible`) with the reason, or with how the child died.
    """
    key = (yield from digest(pair.library)), (yield from digest(pair.declarations))
    if key not in _answers:
        report = yield from _ask_child(pair)
        _answers[key] = msgspec.structs.replace(report, library_sha256=key[0], declarations_sha256=key[1])
    return _answers[key]


def _ask_child(pair: Pair) -> Generator[None, None, ProbeReport]:
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as complaints:
        with _child([*COMMAND, str(pair.declarations), str(pair.library)], answer, complaints) as child:
            ends_at = time.monotonic() + SECONDS_MAX
            while not _ended(child):
                if time.monotonic() > ends_at:
                    raise incompatible(f"the probe gave no answer within {SECONDS_MAX:g} s")
                yield
        if child.returncode:
            raise incompatible(f"the probe {_describe_death(child.returncode)}: {_tail(complaints) or 'it left no message'}")
        return _read_answer(answer)


@contextmanager
def _child(command: list[str], answer: IO[bytes], complaints: IO[bytes]) -> Any:
    """A process that does not outlive the block; nor this process, whose end closes the pipe that the child watches."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=answer, stderr=complaints) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def _ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(GLANCE_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _read_answer(answer: IO[bytes]) -> ProbeReport:
    answer.seek(0)
    lines = answer.read().splitlines()
    try:
        found = json.loads(lines[-1])
        if "refused" not in found:
            return msgspec.convert(found, ProbeReport)
    except (ValueError, LookupError, TypeError) as error:
        raise incompatible("the probe gave an answer that means nothing") from error
    raise incompatible(f"the probe says: {found['refused']}")


def _describe_death(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by the signal {-status}"


def _tail(complaints: IO[bytes]) -> str:
    """The last line that was written, cut to a length that fits a message."""
    complaints.seek(0)
    lines = complaints.read().split(b"\n")
    last = next((line for line in reversed(lines) if line.strip()), b"")
    return last[-COMPLAINT_BYTES_MAX:].decode(errors="replace").strip()
