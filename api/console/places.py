"""Where consoles have their sockets, and whose places those must be.

A socket is `PID.sock` in the runtime directory: `$TRIPOWER_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/tripower`, else `/tmp/tripower-UID`.
Whoever can write to a directory can put a socket of their own in place of ours, so none is used that anybody else could write to:
not the directory, and nothing on the way to it but what keeps everybody's files apart, as `/tmp` does (its sticky bit).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tripower.runtime.kernel.errors import InvalidConfiguration

ROOT = 0
NAME = re.compile(r"([1-9][0-9]*)(-[0-9]+)?\.sock\Z")
"""A second console of one process is `PID-2.sock`."""
_FOREIGN_WRITERS = stat.S_IWGRP | stat.S_IWOTH


def runtime_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Where a process of this user has its socket. Nothing is opened."""
    return runtime_directories(environment)[0]


def runtime_directories(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Where to look for one: a service and a terminal may have been started with different variables. Nothing is opened."""
    variables = os.environ if environment is None else environment
    if named := variables.get("TRIPOWER_RUNTIME_DIR"):
        return [Path(os.path.expanduser(named)).absolute()]  # which takes a home that nobody has for a name
    user = os.geteuid()
    found = [Path(f"/run/user/{user}/tripower"), Path(f"/tmp/tripower-{user}")]
    if session := variables.get("XDG_RUNTIME_DIR"):
        return list(dict.fromkeys([Path(session).absolute() / "tripower", *found]))
    return found[::-1]


def sockets(environment: Mapping[str, str] | None = None, *, pid: int | None = None) -> list[Path]:
    """The sockets of all processes, or of one, whether anybody answers there or not. Blocks for a listing.

    Of directories that nobody named, those of other users are left out: anybody may make one in `/tmp` that looks like ours.
    """
    variables = os.environ if environment is None else environment
    directories = [each for each in runtime_directories(environment) if variables.get("TRIPOWER_RUNTIME_DIR") or _is_ours(each)]
    return [path for directory in directories for path, owner in _listed(directory) if pid in (None, owner)]


def _is_ours(directory: Path) -> bool:
    try:
        return directory.stat().st_uid in (os.geteuid(), ROOT)
    except OSError:
        return False


def _listed(directory: Path) -> Iterator[tuple[Path, int]]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        if match := NAME.match(name):
            yield directory / name, int(match[1])


def make_directory(directory: Path) -> None:
    """Make sure that it is there, for its owner only, and check it. Blocks. Raises `InvalidConfiguration`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unsafe(f"{directory} cannot be made: {error.strerror}") from error
    check_directory(directory)


def check_directory(directory: Path, *, user: int | None = None) -> None:
    """Raise `InvalidConfiguration` (`console_directory_unsafe`) if anybody could change what is in it but `user` and root.

    Without `user` it is this process's. Blocks for a few look-ups.
    """
    mine = os.geteuid() if user is None else user
    try:
        real = Path(os.path.realpath(directory, strict=True))
        for place in dict.fromkeys([directory, *directory.parents, real, *real.parents]):
            _check_place(place, place.lstat(), mine, itself=place in (directory, real))
    except OSError as error:
        raise unsafe(f"{directory} cannot be used: {error.strerror}") from error


def _check_place(place: Path, status: os.stat_result, mine: int, *, itself: bool) -> None:
    if status.st_uid not in (mine, ROOT):
        raise unsafe(f"{place} belongs to another user (uid {status.st_uid})")
    if stat.S_ISLNK(status.st_mode):
        return  # what it leads to is looked at too
    if not stat.S_ISDIR(status.st_mode):
        raise unsafe(f"{place} is no directory")
    if status.st_mode & _FOREIGN_WRITERS and (itself or not status.st_mode & stat.S_ISVTX):
        raise unsafe(f"{place} is writable by others (mode {stat.S_IMODE(status.st_mode):o})")


def unsafe(why: str) -> InvalidConfiguration:
    """What to raise for a directory that cannot hold a console's socket."""
    cure = "name a directory of your own, of mode 700, in TRIPOWER_RUNTIME_DIR or with console.socket"
    return InvalidConfiguration(f"{why}: {cure}", code="console_directory_unsafe")
