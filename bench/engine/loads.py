"""What a model takes: memory beside its file, and time until it is loaded beside llama.cpp.

A load counts from the call to the first step that has run, in a fresh process that has imported everything before; llama.cpp's counts
from the call to the first token evaluated, in a fresh process as well. *Warm* finds what earlier loads have kept (compiled kernels,
tiles, certificate); *cold* begins with an empty folder for those. The file itself is in the page cache for everybody.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tripower.bench.engine.child import running_worker
from tripower.bench.measured_model import MeasuredModel
from tripower.bench.paired import Progress, Rounds, alternate, summarise
from tripower.bench.peers.ask_llamacpp import ask_llamacpp
from tripower.bench.schema import Cell, Target, paired_cell, single_cell

MEMORY_MAX = Target("ours", "<=", 1.3)
WARM_MAX = Target("ratio", "<=", 3.0)
COLD_MAX = Target("ratio", "<=", 10.0)

Seconds = dict[str, float]


def memory_cells(model: MeasuredModel, threads: int, progress: Progress) -> list[Cell]:
    """Weights in memory ÷ file, and what the process grew by. Blocks for one load."""
    progress("memory: loading")
    with running_worker(model.path, threads=threads, sequences=1) as worker:
        loaded = worker.loaded
    share = loaded["weight_bytes"] / model.size_bytes
    note = f"{loaded['weight_bytes'] / 1e6:.1f} MB as the engine counts them; the file has {model.size_bytes / 1e6:.1f}"
    return [
        single_cell("weights in memory ÷ file", share, unit="share", target=MEMORY_MAX, note=note),
        single_cell(
            "memory taken by a load",
            loaded["anonymous_bytes"] / 1e6,
            unit="MB",
            note="growth of the process without mapped files: weights, tokenizer, one sequence's state",
        ),
    ]


def load_cells(model: MeasuredModel, threads: int, *, rounds: int, progress: Progress) -> list[Cell]:
    """Warm and cold. Blocks for some seconds a round."""
    with tempfile.TemporaryDirectory(prefix="tripower-bench-") as folder:
        kept = Path(folder) / "kept"
        kept.mkdir()
        progress("load: first")
        _load_ours(model, threads, kept)
        peer = _load_peer(model, threads)
        warm = alternate(lambda: _load_ours(model, threads, kept), peer, rounds=rounds, label="warm load", progress=progress)

        def cold_load() -> Seconds:
            with tempfile.TemporaryDirectory(dir=folder) as empty:
                return _load_ours(model, threads, Path(empty))

        cold = alternate(cold_load, peer, rounds=max(1, rounds // 2), label="cold load", progress=progress)
    return [
        _cell("warm load", warm, "load", WARM_MAX, "seconds from the call to a first step; kernels and tiles are kept"),
        _cell("cold load", cold, "load", COLD_MAX, "the same with nothing kept"),
        _cell(
            "process start to loaded, warm", warm, "start", None, "with Python and all imports; peer: Python and its library"
        ),
    ]


def _load_ours(model: MeasuredModel, threads: int, kernel_cache: Path) -> Seconds:
    with running_worker(model.path, threads=threads, kernel_cache=kernel_cache, sequences=1) as worker:
        return {"load": worker.loaded["load_seconds"], "start": worker.start_seconds}


def _load_peer(model: MeasuredModel, threads: int) -> Callable[[], Seconds]:
    def load() -> Seconds:
        began = time.perf_counter()
        loaded = ask_llamacpp("load", model.path, None, "--threads", str(threads))
        return {"load": loaded["load_seconds"], "start": time.perf_counter() - began}

    return load


def _cell(name: str, rounds: Rounds[Seconds], key: str, target: Target | None, note: str) -> Cell:
    picked: Rounds[float] = [(order, [seconds[key] for seconds in values]) for order, values in rounds]
    return paired_cell(name, summarise(picked), unit="s", target=target, note=note)
