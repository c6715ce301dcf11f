"""`tripower bench gpu`: the same path on the processor, and what is said where there is no device."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tripower.bench import gpu
from tripower.bench.engines import load_model
from tripower.bench.measured_model import describe_model

Run = Callable[..., dict[str, Any]]

PRECISIONS = ("float32", "compact")
QUESTIONS = ("KL divergence", "largest difference of logits", "top-1 agreement", "tokens generated alike")
RIGHT = [f"{what}, {each}" for each in PRECISIONS for what in QUESTIONS]
FAST = [
    "decode, 1 stream: graphs on against off",
    "share of the bandwidth limit, 1 stream",
    "decode, 16 streams: graphs on against off",
    "launches replayed",
]


@pytest.mark.long
def test_the_whole_path_runs_on_the_processor(tiny_gguf: Path, run_quick: Run) -> None:
    report = run_quick(gpu.main, ["--model", str(tiny_gguf), "--device", "cpu", "--threads", "1"])
    cells = {cell["name"]: cell for cell in report["cells"]}
    assert list(cells) == [*RIGHT, *FAST]
    assert report["host"]["device"] == "cpu" and report["host"]["model"]
    assert cells["KL divergence, float32"]["ok"] and cells["KL divergence, compact"]["ok"]
    assert "the processor, which has no graphs" in cells["launches replayed"]["note"]


def test_where_there_is_no_device_one_line_says_so_and_the_status_is_its_own(
    tiny_gguf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--model", str(tiny_gguf)]) == gpu.EXIT_NO_DEVICE == 3
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("tripower bench gpu: cuda was asked for, and ") and "--device cpu --quick" in said.err


def test_speeds_that_would_begin_too_late_are_left_out_and_say_so(tiny_gguf: Path) -> None:
    device = torch.device("cpu")
    engine = gpu.load_on(describe_model(tiny_gguf), device, "float32", gpu.QUICK)
    cells = gpu.speed_cells(engine, device, gpu.QUICK, time.monotonic() - 1, lambda text: None)
    engine.close()
    assert [cell.name for cell in cells if cell.ours is None] == [FAST[0], FAST[2]]
    assert all("left out" in (cell.note or "") for cell in cells if cell.ours is None)


def test_tokens_are_generated_greedily_from_an_empty_sequence(tiny_gguf: Path) -> None:
    model = load_model(tiny_gguf, context=64, sequences=1, threads=1)
    first = gpu.generate(model, [5, 6, 7], 4)
    assert len(first) == 4 and gpu.generate(model, [5, 6, 7, first[0]], 3) == first[1:]
    model.engine.close()
