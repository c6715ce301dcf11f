"""A Unix socket to listen on: made for its owner only, taken over from a server that died, removed in the end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Self

import attrs

from tripower.runtime.kernel import InvalidConfiguration

PATH_BYTES_MAX = 107
"""What a socket's address has room for."""
PROBE_SECONDS = 1.0


@attrs.frozen
class UnixSocket:
    """A socket that listens, and the file that it is known by."""

    socket: socket.socket
    path: Path
    _identity: tuple[int, int]

    @classmethod
    def listen(cls, path: str, mode: int, backlog: int, *, setting: str = "server.unix_socket") -> Self:
        """Blocks for a connection attempt at most. Raises `InvalidConfiguration` naming the `setting` that the path is from.

        The mode is set before the socket listens, so nobody else can connect in between.
        """
        place = Path(path).expanduser().absolute()
        if len(os.fsencode(place)) > PATH_BYTES_MAX:
            raise _invalid(
                setting, f"{place} is longer than {PATH_BYTES_MAX} bytes, which is all that a socket's address may have"
            )
        _make_room(place, setting)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(str(place))
            place.chmod(mode)
            listening.listen(backlog)
            status = place.lstat()
        except OSError as error:
            listening.close()
            raise _invalid(setting, f"{place} cannot be made: {error.strerror}") from error
        return cls(listening, place, (status.st_dev, status.st_ino))

    def remove(self) -> None:
        """Remove the file, unless another server has put its own in its place. Idempotent."""
        with contextlib.suppress(OSError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self._identity:
                self.path.unlink()


def _make_room(path: Path, setting: str) -> None:
    """Remove a socket that nobody listens on any more. Anything else stays."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _invalid(setting, f"{path} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISSOCK(status.st_mode):
        raise _invalid(setting, f"{path} is there already and is no socket: remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError as error:
            raise _invalid(setting, f"{path} cannot be probed: {error.strerror or error}") from error
    raise InvalidConfiguration(
        f"another server answers at {path}: stop it, or choose another path in {setting}", code="socket_in_use"
    )


def _invalid(setting: str, message: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{setting} {message}", code="socket_unusable")
