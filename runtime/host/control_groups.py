"""What the control groups of Linux allow this process: processors and memory, versions 1 and 2.

A limit may sit on the process's own group or on any ancestor, and the tightest one counts. In a container the path that
`/proc/self/cgroup` names may not exist below `/sys/fs/cgroup`, because the container's own group is mounted as the root there; so
every directory from the named path up to the root is looked at, and those that exist count. Reading is cheap; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as the largest page-aligned number."""


class MemoryLimit(msgspec.Struct, frozen=True):
    """A memory limit, what of it is used and cannot be reclaimed, in bytes, and the file that states it."""

    limit: int
    used: int
    where: str

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


class ProcessorLimit(msgspec.Struct, frozen=True):
    """Processors' worth of time, and the file that states it."""

    processors: float
    where: str


def processor_limit(proc: Path, sys: Path) -> ProcessorLimit | None:
    """The tightest processor quota, or None."""
    limits = [*_processor_limits_2(proc, sys), *_processor_limits_1(proc, sys)]
    return min(limits, key=lambda limit: limit.processors, default=None)


def memory_limit(proc: Path, sys: Path) -> MemoryLimit | None:
    """The memory limit that leaves the least room, or None."""
    limits = [*_memory_limits_2(proc, sys), *_memory_limits_1(proc, sys)]
    return min(limits, key=lambda limit: limit.free, default=None)


def _processor_limits_2(proc: Path, sys: Path) -> Iterator[ProcessorLimit]:
    for directory in _directories_2(proc, sys):
        words = _read(directory / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            yield ProcessorLimit(int(words[0]) / int(words[1]), str(directory / "cpu.max"))


def _processor_limits_1(proc: Path, sys: Path) -> Iterator[ProcessorLimit]:
    for directory in _directories_1(proc, sys, "cpu"):
        quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
        if quota and period:
            yield ProcessorLimit(quota / period, str(directory / "cpu.cfs_quota_us"))


def _memory_limits_2(proc: Path, sys: Path) -> Iterator[MemoryLimit]:
    for directory in _directories_2(proc, sys):
        for name in ("memory.max", "memory.high"):
            limit = _number(directory / name)
            if limit is not None and limit < NO_LIMIT:
                used = _in_use(directory / "memory.current", directory / "memory.stat", "inactive_file")
                yield MemoryLimit(limit, used, str(directory / name))


def _memory_limits_1(proc: Path, sys: Path) -> Iterator[MemoryLimit]:
    for directory in _directories_1(proc, sys, "memory"):
        limit = _number(directory / "memory.limit_in_bytes")
        if limit is not None and limit < NO_LIMIT:
            used = _in_use(directory / "memory.usage_in_bytes", directory / "memory.stat", "total_inactive_file")
            yield MemoryLimit(limit, used, str(directory / "memory.limit_in_bytes"))


def _in_use(usage: Path, statistics: Path, reclaimable: str) -> int:
    """Usage without file pages that nobody uses: the kernel gives those back before it kills anyone."""
    for line in _read(statistics).splitlines():
        key, _, value = line.partition(" ")
        if key == reclaimable and value.isdecimal():
            return max(0, (_number(usage) or 0) - int(value))
    return _number(usage) or 0


def _directories_2(proc: Path, sys: Path) -> Iterator[Path]:
    """Directories of version 2, which may be mounted alone or, in hybrid systems, in `unified`."""
    for controllers, path in _memberships(proc):
        if not controllers:
            for mount in ("", "unified"):
                yield from _upwards(sys / "fs" / "cgroup" / mount, path)


def _directories_1(proc: Path, sys: Path, controller: str) -> Iterator[Path]:
    """Directories of one version 1 controller, which may be mounted with others: `cpu,cpuacct`."""
    for controllers, path in _memberships(proc):
        if controller in controllers:
            for mount in dict.fromkeys([controller, ",".join(controllers)]):
                yield from _upwards(sys / "fs" / "cgroup" / mount, path)


def _memberships(proc: Path) -> Iterator[tuple[list[str], str]]:
    """(controllers, path) of each line of `/proc/self/cgroup`; no controllers means version 2."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            yield [name for name in fields[1].split(",") if name], fields[2]


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Every existing directory from the group up to the mount."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:length])
        if directory.is_dir():
            yield directory


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
