"""The command line as people run it: a child process, with its two streams and its signals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

PATIENCE = 60.0
"""Seconds after which a child counts as hung: never reached by a test that passes."""
COMMAND = (sys.executable, "-W", "error", "-m", "tripower")


def environment(home: Path, **changes: str) -> dict[str, str]:
    """The caller's environment without any setting of tripower's, and with a home of its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRIPOWER_")}
    return {
        **plain,
        "TRIPOWER_HOME": str(home),
        "TRIPOWER_RUNTIME_DIR": str(home / "run"),
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        **changes,
    }


def tripower(
    home: Path, *arguments: str, text: str | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `text` is piped in."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(home, **(variables or {})),
        stdin=subprocess.DEVNULL if text is None else None,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@attrs.define
class Child:
    """A running command. Standard error is gathered by a thread, so that it never fills up."""

    process: subprocess.Popen[str]
    errors: list[str] = attrs.Factory(list)

    def read_until(self, text: str) -> str:
        """Standard output up to the line that has `text`. Fails when the output ends before."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return "".join(lines)
        self.process.wait(PATIENCE)
        raise AssertionError(f"the command ended with {self.process.returncode}: {''.join(lines)}{''.join(self.errors)}")

    def wait_for_error(self, text: str) -> None:
        """Until standard error has `text`."""
        with self.changed:
            assert self.changed.wait_for(lambda: text in "".join(self.errors) or self.process.poll() is not None, PATIENCE)
        assert text in "".join(self.errors), "".join(self.errors)

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(PATIENCE)

    changed: threading.Condition = attrs.Factory(threading.Condition)

    def gather(self) -> None:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            with self.changed:
                self.errors.append(line)
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()


@contextmanager
def running(home: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Start a command, and kill it at the end of the block if it is still there."""
    with started([*COMMAND, *arguments], home, variables) as child:
        yield child


@contextmanager
def started(command: Sequence[str], home: Path, variables: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Start any program, and kill it at the end of the block if it is still there."""
    with subprocess.Popen(
        command,
        env=environment(home, **(variables or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        child = Child(process)
        gathering = threading.Thread(target=child.gather)
        gathering.start()
        try:
            yield child
        finally:
            process.kill()
            gathering.join(PATIENCE)
