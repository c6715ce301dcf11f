"""From a process number, a path or nothing to a console that answers."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import attrs
import msgspec
import trio

from tripower.api.console.lines import Lines
from tripower.api.console.peers import NOBODY, may_be_trusted, peer_of
from tripower.api.console.places import runtime_directories, sockets
from tripower.api.console.protocol import PROTOCOL, Hello, Refusal
from tripower.runtime.kernel.errors import Unavailable

HELLO_SECONDS = 5.0
"""A process whose loop is held for so long does not count as answering."""
LISTED_SECONDS = 1.0
"""The same where several are looked at."""
TARGET_MAX = 200
"""As much of what nobody can be attached to is repeated."""
PID_DIGITS_MAX = 20
_ADDRESS = re.compile(r"[^/]*:[0-9]+\Z|[A-Za-z][A-Za-z0-9+.-]*://")


class CannotAttach(Unavailable):
    """There is no console where one was looked for, or none that answers."""

    code = "cannot_attach"


@attrs.frozen
class Attached:
    """A connection whose other side has said who it is."""

    stream: trio.SocketStream
    lines: Lines
    hello: Hello
    path: Path


async def attach(target: str | None = None) -> Attached:
    """A connection to the console that `target` means: a process number, the path of a socket, or None for the only one there is.

    Blocks for up to `HELLO_SECONDS`. Raises `CannotAttach` with what to do instead.
    """
    if target is None and len(paths := sockets()) == 1:  # as nearly always: nobody else has to be looked at
        try:
            return await _greeted(paths[0], HELLO_SECONDS)
        except CannotAttach as error:
            if not isinstance(error.__cause__, OSError):
                raise
    return await _greeted(await find(target), HELLO_SECONDS)


async def find(target: str | None) -> Path:
    """The socket that is meant. Raises `CannotAttach`: for nobody, naming who else is there; for several, naming each."""
    if target is None:
        return await _only_one()
    if target.isascii() and target.isdecimal():
        found = sockets(pid=int(target[:PID_DIGITS_MAX]))
        if not found:
            raise CannotAttach(f"process {target[:TARGET_MAX]} has no console{await _others()}")
        return found[0]
    if _ADDRESS.match(target):
        raise CannotAttach(f"{target} is an address, and a console is only ever on this machine: name a process or a socket")
    place = _existing(target)
    if place is None:
        raise CannotAttach(f"there is no socket {target[:TARGET_MAX]!r}{await _others()}")
    return place


def _existing(target: str) -> Path | None:
    """None for what is no socket, whatever else it may be. Follows links."""
    place = Path(os.path.expanduser(target)).absolute()
    try:
        return place if stat.S_ISSOCK(place.stat().st_mode) else None
    except OSError:
        return None


async def _only_one() -> Path:
    found = await answering()
    if len(found) == 1:
        return next(iter(found))
    if not found:
        places = " or ".join(map(str, runtime_directories()))
        raise CannotAttach(
            f"no server with a console runs here: start one with `tripower serve MODEL`, or name its socket (looked in {places})"
        )
    raise CannotAttach("\n  ".join(["several servers run here: name one by its process", *map(_described, found.values())]))


async def _others() -> str:
    found = await answering()
    if not found:
        return ", and no server with a console runs here: start one with `tripower serve MODEL`"
    return "\n  ".join(["; what runs here:", *map(_described, found.values())])


def _described(hello: Hello) -> str:
    return "  ".join(part for part in (str(hello.pid), hello.url, ", ".join(hello.models)) if part)


async def answering() -> dict[Path, Hello]:
    """The consoles of this user that somebody answers at, in the order of their processes. Blocks for up to `LISTED_SECONDS`.

    A process that does not answer in time is in it too, with what its socket's name says.
    """
    found: dict[Path, Hello] = {}

    async def look(path: Path) -> None:
        try:
            attached = await _greeted(path, LISTED_SECONDS)
        except CannotAttach as error:
            if error.code == "no_answer":
                found[path] = Hello(version="", pid=int(path.name.partition(".")[0].partition("-")[0]), verbs=())
            return
        await trio.aclose_forcefully(attached.stream)
        found[path] = attached.hello

    async with trio.open_nursery() as looks:
        for path in sockets():
            looks.start_soon(look, path)
    return dict(sorted(found.items(), key=lambda item: (item[1].pid, item[0])))


async def _greeted(path: Path, seconds: float) -> Attached:
    """Raises `CannotAttach`; `no_answer` when somebody listens there and says nothing."""
    with trio.move_on_after(seconds):
        try:
            stream = await trio.open_unix_socket(os.fspath(path))
        except OSError as error:
            why = "its process has ended" if error.errno == errno.ECONNREFUSED else error.strerror or error
            raise CannotAttach(f"nobody answers at {path}: {why}") from error
        try:
            lines = Lines(stream)
            return Attached(stream, lines, await _hello(stream, lines, path), path)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
    raise CannotAttach(f"what listens at {path} does not answer for {seconds:g} s: its loop is held", code="no_answer")


async def _hello(stream: trio.SocketStream, lines: Lines, path: Path) -> Hello:
    peer = peer_of(stream.socket)  # type: ignore[arg-type]  # Trio's socket has `getsockopt`, which is all that is used
    if peer is not None and peer.user == NOBODY:  # Trio takes a queue that is full for a connection
        raise CannotAttach(f"what listens at {path} accepts nobody: its loop is held", code="no_answer")
    if not may_be_trusted(peer):
        raise CannotAttach(f"{path} belongs to another user: its answers cannot be trusted")
    line = await lines.receive()
    if line is None:
        raise CannotAttach(f"what listens at {path} says nothing")
    try:
        said = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise CannotAttach(f"what listens at {path} is no console of tripower's") from error
    if isinstance(said, Hello) and not all(text.isprintable() for text in (said.version, said.url, *said.models)):
        raise CannotAttach(f"what listens at {path} is no console of tripower's")
    if isinstance(said, Refusal):
        raise CannotAttach(f"the console at {path} refuses: {said.message}")
    if said.protocol != PROTOCOL:
        raise CannotAttach(
            f"process {said.pid} runs tripower {said.version}, whose console speaks otherwise: use its own `tripower console`"
        )
    return said


_decoder = msgspec.json.Decoder(Hello | Refusal)
