"""The loops that say what the machine allows do what they claim; how fast is not asserted."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from tripower.bench.engine import limits
from tripower.bench.engine.limits import CHAINS, SUMS, last_level_cache_bytes, seconds_together, vector_lanes


@pytest.mark.parametrize("lanes", vector_lanes())
def test_the_reading_loop_reads_every_word(lanes: int) -> None:
    words = np.arange(3 * SUMS * lanes, dtype=np.int32)
    assert limits._loops(lanes).read(words.ctypes.data, 3) == words.sum()


@pytest.mark.parametrize("lanes", vector_lanes())
@pytest.mark.parametrize("iterations", [1, 3])
def test_the_multiplying_loop_carries_every_chain_on(lanes: int, iterations: int) -> None:
    chains = np.arange(CHAINS, dtype=np.float64)
    for _ in range(iterations):
        chains = 0.5 * chains + 0.25
    assert limits._loops(lanes).multiply_add(iterations, 0.5, 0.25) == pytest.approx(lanes * chains.sum())


@pytest.mark.parametrize("threads", [1, 2])
def test_both_limits_are_figures(threads: int) -> None:
    assert limits.read_bandwidth(threads, passes=1, buffer_bytes=1 << 20) > 0
    assert limits.fma_peak(threads, passes=1, iterations=1000) > 0


def test_calls_run_at_the_same_time() -> None:
    together = threading.Barrier(3)
    assert seconds_together([together.wait] * 3) > 0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"index0": "32K\n", "index3": "32768K\n"}, 32 << 20),
        ({"index0": "48K", "index2": "2M"}, 2 << 20),
        ({"index0": "unknown"}, limits.CACHE_BYTES_DEFAULT),
        ({}, limits.CACHE_BYTES_DEFAULT),
    ],
)
def test_the_largest_cache_counts(sizes: dict[str, str], expected: int, tmp_path: Path) -> None:
    for index, size in sizes.items():
        (tmp_path / index).mkdir()
        (tmp_path / index / "size").write_text(size)
    assert last_level_cache_bytes(tmp_path) == expected
