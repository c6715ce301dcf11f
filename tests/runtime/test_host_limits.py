"""Cores and memory are those that this process may use, read from trees of the kernel's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tripower.runtime.host import HostLimits, read_host_limits

MEMORY = "MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable:   8000000 kB\nSwapTotal: 0 kB\n"
CPU = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2 fma nonsense\n\n"
MACHINE = {"proc/meminfo": MEMORY, "proc/cpuinfo": CPU + CPU.replace(": 0", ": 1", 1)}
AVAILABLE = 8_000_000 * 1024
TOTAL = 16_000_000 * 1024
NO_LIMIT_1 = "9223372036854771712\n"


def host(root: Path, files: Mapping[str, str], processors: int = 2) -> HostLimits:
    for name, text in {**MACHINE, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_host_limits(proc=root / "proc", sys=root / "sys", affinity=range(processors))


def test_a_machine_without_limits_gives_all_it_has(tmp_path: Path) -> None:
    limits = host(tmp_path, {})
    assert (limits.cores, limits.processors) == (2, 2)
    assert limits.cores_reason == "2 cores in the process's affinity mask"
    assert (limits.memory_total, limits.memory_available) == (TOTAL, AVAILABLE)
    assert limits.memory_reason == "what the kernel reports as available"
    assert limits.processor_name == "Some CPU"
    assert limits.features == ("avx", "avx2", "fma")


def test_a_narrower_affinity_mask_counts(tmp_path: Path) -> None:
    assert host(tmp_path, {}, processors=1).cores == 1
    assert host(tmp_path, {}, processors=1).cores_reason == "1 core in the process's affinity mask"


def test_two_hyper_threads_are_one_core(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {topology.format(cpu): f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)}
    limits = host(tmp_path, siblings, processors=4)
    assert limits.cores == 2
    assert "of 4 hyper-threads" in limits.cores_reason


@pytest.mark.parametrize(
    ("files", "cores", "said_by"),
    [
        pytest.param(
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "100000 100000\n"}, 1, "b/cpu.max", id="own"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            },
            1,
            "a/cpu.max",
            id="the tightest ancestor, rounded down",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "5000 100000\n"}, 1, "cpu.max", id="never below one"
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/elsewhere/x\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"},
            1,
            "cpu.max",
            id="in a container",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"},
            1,
            "cpu.max",
            id="outside its namespace",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/unified/a/cpu.max": "100000 100000\n"}, 1, "unified", id="hybrid"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/d/1\n3:memory:/d/1\n",
                "sys/fs/cgroup/cpu,cpuacct/d/1/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/d/1/cpu.cfs_period_us": "100000\n",
            },
            1,
            "cfs_quota_us",
            id="version 1, joined controllers",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "1:cpu:/d\n",
                "sys/fs/cgroup/cpu/d/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/d/cpu.cfs_period_us": "100000\n",
            },
            2,
            "affinity",
            id="version 1, no quota",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "800000 100000\n"},
            2,
            "affinity",
            id="more than there is",
        ),
        pytest.param({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "garbage\n"}, 2, "affinity", id="garbage"),
        pytest.param({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100000 0\n"}, 2, "affinity", id="no period"),
        pytest.param({"proc/self/cgroup": "nonsense"}, 2, "affinity", id="no groups"),
    ],
)
def test_a_quota_limits_the_cores(tmp_path: Path, files: dict[str, str], cores: int, said_by: str) -> None:
    limits = host(tmp_path, files)
    assert limits.cores == cores
    assert said_by in limits.cores_reason


GB = 10**9


@pytest.mark.parametrize(
    ("files", "total", "available", "said_by"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": f"{4 * GB}\n",
                "sys/fs/cgroup/a/b/memory.current": f"{3 * GB}\n",
                "sys/fs/cgroup/a/b/memory.stat": f"anon {GB}\ninactive_file {2 * GB}\n",
            },
            4 * GB,
            3 * GB,
            "memory.max",
            id="file pages that nobody uses are free",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * GB}\n",
                "sys/fs/cgroup/a/memory.high": f"{2 * GB}\n",
                "sys/fs/cgroup/a/memory.current": f"{GB}\n",
            },
            2 * GB,
            GB,
            "memory.high",
            id="the throttling limit counts",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": f"{2 * GB}\n",
                "sys/fs/cgroup/a/memory.max": f"{3 * GB}\n",
                "sys/fs/cgroup/a/memory.current": f"{3 * GB}\n",
            },
            3 * GB,
            0,
            "a/memory.max",
            id="a full ancestor leaves nothing",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/1\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB // 2}\n",
                "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GB // 4}\n",
            },
            GB,
            GB - GB // 4,
            "limit_in_bytes",
            id="version 1 in a container",
        ),
        pytest.param(
            {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_1},
            TOTAL,
            AVAILABLE,
            "kernel",
            id="version 1 without a limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, TOTAL, AVAILABLE, "kernel", id="no limit"
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": f"{100 * GB}\n"},
            TOTAL,
            AVAILABLE,
            "kernel",
            id="a wide limit",
        ),
    ],
)
def test_a_group_limits_the_memory(tmp_path: Path, files: dict[str, str], total: int, available: int, said_by: str) -> None:
    limits = host(tmp_path, files)
    assert (limits.memory_total, limits.memory_available) == (total, available)
    assert said_by in limits.memory_reason


def test_without_the_kernels_files_the_figures_are_careful_and_sane(tmp_path: Path) -> None:
    limits = read_host_limits(proc=tmp_path, sys=tmp_path)
    assert limits.cores >= 1
    assert limits.processors >= 1
    assert 0 < limits.memory_available <= limits.memory_total
    assert limits.features == ()


def test_this_machine_can_be_read() -> None:
    limits = read_host_limits()
    assert 1 <= limits.cores <= limits.processors
    assert 0 < limits.memory_available <= limits.memory_total
