"""What a figure was measured on: without it a number means nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tripower.runtime.host import read_host_limits

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
QUIET_SECONDS = 0.5
QUIET_SHARE = 0.1
PACKAGES = ("tripower", "trio", "hypercorn", "numpy", "torch", "llvmlite", "msgspec")


def describe_host(*packages: str) -> dict[str, Any]:
    """Processor, cores, memory, load and versions, for a report. `packages` are further distributions whose version matters.

    Blocks for half a second, in which it looks how busy the machine is before the bench begins. A figure from a busy machine is
    provisional, and says so.
    """
    limits = read_host_limits()
    busy = psutil.cpu_percent(interval=QUIET_SECONDS) / 100
    return {
        "processor": limits.processor_name,
        "features": " ".join(limits.features),
        "cores": limits.cores,
        "governor": _governor(),
        "memory_gb": round(limits.memory_total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "busy_before": round(busy, 2),
        "measured": datetime.now(UTC).date().isoformat(),
        "provisional": "yes: other work was running" if busy > QUIET_SHARE else None,
        "versions": {"python": platform.python_version(), **_versions((*PACKAGES, *packages))},
    }


def _governor() -> str | None:
    try:
        return GOVERNOR.read_text().strip()
    except OSError:
        return None


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
