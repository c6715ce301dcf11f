"""What the tests of the benches share: running one in its quick form, and the schema that all reports have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tripower.bench.gguf_samples import byte_level_metadata, llama_tensors, write_gguf

Run = Callable[[Callable[[Sequence[str]], int], Sequence[str]], dict[str, Any]]

REPORT_KEYS = {"bench", "host", "cells", "ok"}
CELL_KEYS = {"name", "ours", "peer", "ratio", "target", "ok", "unit", "iqr", "note"}


@pytest.fixture
def run_quick(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run_quick(main, arguments)`: the report of a quick run, checked against the schema. No figure is looked at."""

    def run(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> dict[str, Any]:
        assert main(["--quick", "--json", *arguments]) == 0
        report: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
        check_schema(report)
        return report

    return run


def check_schema(report: dict[str, Any]) -> None:
    assert set(report) == REPORT_KEYS
    assert report["host"]["cores"] >= 1
    assert report["host"]["versions"]["python"]
    assert report["cells"]
    for cell in report["cells"]:
        assert set(cell) == CELL_KEYS
        assert (cell["target"] is None) == (cell["ok"] is None)
        assert (cell["peer"] is None) == (cell["ratio"] is None)
        if cell["ratio"] is not None:
            assert cell["iqr"][0] <= cell["iqr"][1]
    assert report["ok"] is all(cell["ok"] is not False for cell in report["cells"])
    names = [cell["name"] for cell in report["cells"]]
    assert len(names) == len(set(names))


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that every bench of a model can load in no time: one layer, 262 tokens, the context of a real model."""
    metadata = byte_level_metadata(more={"llama.context_length": 4096, "general.file_type": 2})
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    path.write_bytes(write_gguf(metadata, llama_tensors(len(tokens))))
    return path
