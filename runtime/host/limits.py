"""What this process may use of the machine: cores, memory, and the instructions its processor has.

A container or a scheduler often grants less than the machine has, and a program that counts the machine's cores then starts threads
that fight for time, or takes memory until it is killed. Every figure carries its reason, for `tripower doctor`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
import psutil

from tripower.runtime.host.control_groups import memory_limit, processor_limit

FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Figures for one process at one moment. Memory is in bytes."""

    cores: int
    """Threads that can compute at the same time: at least 1."""
    cores_reason: str
    processors: int
    """Logical processors of the machine."""
    memory_total: int
    memory_available: int
    """What this process may still take before something is swapped or killed."""
    memory_reason: str
    processor_name: str = ""
    features: tuple[str, ...] = ()
    """Those of `FEATURES` that the processor has."""


def read_host_limits(
    *, proc: Path = Path("/proc"), sys: Path = Path("/sys"), affinity: Collection[int] | None = None
) -> HostLimits:
    """Read them now. Blocks for some small reads; never raises, a figure that cannot be read is replaced by a careful one."""
    allowed = usable_processors() if affinity is None else affinity
    name, features = _processor(proc)
    cores, cores_reason = _cores(proc, sys, allowed)
    total, available, memory_reason = _memory(proc, sys)
    return HostLimits(
        cores=cores,
        cores_reason=cores_reason,
        processors=_logical_processors(proc),
        memory_total=total,
        memory_available=available,
        memory_reason=memory_reason,
        processor_name=name,
        features=features,
    )


def usable_processors() -> Collection[int]:
    """Numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _cores(proc: Path, sys: Path, allowed: Collection[int]) -> tuple[int, str]:
    """Physical cores in the affinity mask, or fewer when a control group grants less time.

    Two hyper-threads share the units that a kernel saturates, so a core counts once. A quota of 1.5 gives one thread: two would be
    stopped for a quarter of each period, in the middle of a step.
    """
    cores = physical_cores(sys, allowed)
    reason = f"{_count(cores, 'core')} in the process's affinity mask"
    if cores < len(allowed):
        reason += f" (of {len(allowed)} hyper-threads)"
    quota = processor_limit(proc, sys)
    if quota is not None and quota.processors < cores:
        return max(1, int(quota.processors)), f"a quota of {quota.processors:g} processors in {quota.where}"
    return cores, reason


def physical_cores(sys: Path, allowed: Collection[int]) -> int:
    """Cores among these logical processors, by the kernel's sibling lists; at least 1."""
    cores = set()
    for processor in allowed:
        siblings = sys / "devices" / "system" / "cpu" / f"cpu{processor}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(f"cpu{processor}")
    return max(1, len(cores))


def _memory(proc: Path, sys: Path) -> tuple[int, int, str]:
    """(total, available, reason): what the kernel calls available, or less when a control group is tighter."""
    total, available = _machine_memory(proc)
    limit = memory_limit(proc, sys)
    if limit is not None and limit.free < available:
        return (
            min(total, limit.limit),
            limit.free,
            f"{limit.limit / 1e9:.1f} GB allowed by {limit.where}, {limit.used / 1e9:.1f} GB used",
        )
    return total, available, "what the kernel reports as available"


def _machine_memory(proc: Path) -> tuple[int, int]:
    figures = {}
    for line in _lines(proc / "meminfo"):
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            figures[key] = int(words[0]) * 1024
    if "MemTotal" in figures and "MemAvailable" in figures:
        return figures["MemTotal"], figures["MemAvailable"]
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _processor(proc: Path) -> tuple[str, tuple[str, ...]]:
    name, flags = "", frozenset[str]()
    for line in _lines(proc / "cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not name:
            name = value.strip()
        elif key.strip() in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return name or platform.machine(), tuple(feature for feature in FEATURES if feature in flags)


def _logical_processors(proc: Path) -> int:
    return sum(1 for line in _lines(proc / "cpuinfo") if line.startswith("processor")) or os.cpu_count() or 1


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return ()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
