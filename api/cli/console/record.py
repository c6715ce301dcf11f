"""`tripower console record FILE`: keep what passes between a server's actors, or has passed lately, in a file to step through.

The file is there when it is complete, and not before; Ctrl-C completes it early. What is there already is replaced only when that is
asked for. Nobody else may read it: with `--payloads` it holds prompts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from tripower.api.cli import exit_codes
from tripower.api.cli.interrupts import Interrupts, run_until_interrupted
from tripower.api.cli.terminal import note, tolerate_any_text
from tripower.api.console.client import OpenCall, open_console
from tripower.api.console.verbs.record import ALL, STOP
from tripower.runtime.kernel.errors import InvalidRequest
from tripower.runtime.store.durable import publish_file

PROGRESS_RECORDS = 10_000
"""Between two lines that tell how far it is."""


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit code. Raises what attaching and the verb raise, and `InvalidRequest` where the file cannot be written."""
    tolerate_any_text()
    final = place_of(arguments.file, replace=arguments.force)
    if arguments.payloads and arguments.seconds is None:
        raise InvalidRequest("what messages say is kept only while it is asked for: add --seconds N to --payloads")
    try:
        with whole_file(final) as file:
            count = run_until_interrupted(partial(keep, arguments, file))
    except OSError as error:
        raise InvalidRequest(f"{final} cannot be written: {error.strerror}") from error
    note(f"{count} records in {final}: `tripower console view {final}` steps through them")
    return exit_codes.OK


def place_of(name: str, *, replace: bool) -> Path:
    """Where the file goes, behind symbolic links. Raises `InvalidRequest` where there is something that must not be replaced."""
    final = Path(name).expanduser().resolve()
    if not name or final.is_dir():
        raise InvalidRequest(f"{name!r} is no file: name the one to write")
    if final.exists() and not final.is_file():
        raise InvalidRequest(f"{final} is no regular file: name another one")
    if final.exists() and not replace:
        raise InvalidRequest(f"{final} is there already: name another file, or add --force to replace it")
    return final


@contextmanager
def whole_file(final: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when the block has ended, and is gone when that failed. Raises `OSError`."""
    temporary = final.with_name(f"{final.name}.{os.getpid()}.new")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=0o600)) as file:
            yield file
        publish_file(temporary, final)
    finally:
        with suppress(OSError):
            temporary.unlink()


async def keep(arguments: argparse.Namespace, file: BinaryIO, interrupts: Interrupts) -> int:
    """Write what `record` answers; returns how many records there are. Ctrl-C ends it early, a second one drops it."""
    words = [f"{arguments.seconds:g}"] if arguments.seconds else [ALL]
    words += ["--payloads"] if arguments.payloads else []
    async with open_console(arguments.target) as console, console.open_call("record", words) as call:
        writer = Writer(file)
        if arguments.seconds:
            note(f"recording for {arguments.seconds:g} s; Ctrl-C ends it early")
        with interrupts.only_this() as early:
            await writer.write(call)
        if early.cancelled_caught:
            note("ending early; Ctrl-C once more drops what there is")
            await console.call("record", [STOP])
            await writer.write(call)
    return writer.count


class Writer:
    """Puts what comes into a file, a line for each record."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0
        """Records so far."""

    async def write(self, call: OpenCall) -> None:
        """Until the answer is complete. Can be cancelled without loss, to go on afterwards."""
        async for item in call:
            data = bytes(item)
            if not data.startswith(b"["):
                self._file.write(data + b"\n")
                continue
            records = msgspec.json.decode(data, type=list[msgspec.Raw])
            self._file.writelines(bytes(record) + b"\n" for record in records)
            if (self.count + len(records)) // PROGRESS_RECORDS > self.count // PROGRESS_RECORDS:
                note(f"{self.count + len(records)} records so far")
            self.count += len(records)
