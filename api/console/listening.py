"""The socket that a process listens on for consoles."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from tripower.api.console.places import NAME, check_directory, make_directory, runtime_directory
from tripower.api.http.listening.unix_socket import UnixSocket
from tripower.runtime.configuration import ConsoleSettings
from tripower.runtime.configuration.schema import is_socket
from tripower.runtime.kernel import InvalidConfiguration

log = logging.getLogger("tripower.console")

MODE = 0o600
BACKLOG = 128
CONSOLES_MAX = 16
"""Of one process, at places that nobody named."""
PROBE_SECONDS = 0.5


@contextmanager
def console_socket(settings: ConsoleSettings) -> Iterator[UnixSocket | None]:
    """What a service listens on for the length of the block; None where it shall not, or cannot and nobody named a place.

    Blocks for a few look-ups. Raises `InvalidConfiguration` when `console.socket` cannot be used; what is wrong with a place that
    nobody named is a warning, since a service that cannot be looked into still serves.
    """
    opened: UnixSocket | None = None
    if settings.enabled:
        try:
            opened = listen(settings.socket)
        except InvalidConfiguration as error:
            if settings.socket:
                raise
            log.warning("there is no console: %s", error)
    with removed_in_the_end(opened):
        yield opened


@contextmanager
def library_console(where: str | os.PathLike[str] | Literal[True]) -> Iterator[UnixSocket]:
    """What a program listens on that asked for a console: at the usual place (True), or at a path. Raises like `listen`."""
    opened = listen("" if where is True else where)
    with removed_in_the_end(opened):
        yield opened


@contextmanager
def removed_in_the_end(opened: UnixSocket | None) -> Iterator[None]:
    """Close a socket and remove its file after the block."""
    if opened is None:
        yield
        return
    with closing(opened.socket):
        try:
            yield
        finally:
            opened.remove()


def listen(path: str | os.PathLike[str] = "") -> UnixSocket:
    """A socket at a path, else `PID.sock` in the runtime directory, which is made. Blocks for a few look-ups.

    What a dead process left behind is replaced. Raises `InvalidConfiguration` for a directory that others can write to, for a path that
    is in use, and for one that cannot be.
    """
    if path:
        if not is_socket(os.fspath(path)):
            raise InvalidConfiguration(
                f"console.socket is the path of a Unix socket, never an address: {path}", code="socket_unusable"
            )
        place = Path(os.path.expanduser(path)).absolute()
        check_directory(place.parent)
        return UnixSocket.listen(str(place), MODE, BACKLOG, setting="console.socket")
    directory = runtime_directory()
    make_directory(directory)
    _sweep(directory)
    for number in range(1, CONSOLES_MAX + 1):
        name = f"{os.getpid()}.sock" if number == 1 else f"{os.getpid()}-{number}.sock"
        try:
            return UnixSocket.listen(str(directory / name), MODE, BACKLOG, setting="the console's socket")
        except InvalidConfiguration as error:
            if error.code != "socket_in_use":
                raise
    raise InvalidConfiguration(f"this process has {CONSOLES_MAX} consoles already: close one", code="socket_in_use")


def _sweep(directory: Path) -> None:
    """Remove sockets of processes that have died. One that somebody answers stays, whatever its name: it may be another container's."""
    for path in directory.iterdir():
        match = NAME.match(path.name)
        with suppress(OSError):
            if match and path.is_socket() and not _lives(int(match[1])) and not _answers(path):
                path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
