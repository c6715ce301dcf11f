"""What a step has to read and to multiply."""

from __future__ import annotations

from pathlib import Path

import pytest

from tripower.backends.gguf.layout import TensorInfo
from tripower.backends.gguf.reader import open_gguf
from tripower.bench.engine.work import StepWork, step_work, work_of


def tensor(name: str, *shape: int, nbytes: int = 100) -> TensorInfo:
    return TensorInfo(name, shape, "F32", 0, 0, nbytes, 1, 4)


EMBEDDING, HEAD = tensor("token_embd.weight", 50, 4), tensor("output.weight", 50, 4, nbytes=70)
MATRIX, NORM = tensor("blk.0.ffn_up.weight", 8, 4), tensor("blk.0.ffn_norm.weight", 4)
EXPERTS = tensor("blk.0.ffn_up_exps.weight", 8, 8, 4, nbytes=800)
MIXTURE = {"general.architecture": "qwen3moe", "qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 2}


@pytest.mark.parametrize(
    ("tensors", "metadata", "expected"),
    [
        ([EMBEDDING, MATRIX, NORM], {}, StepWork(200, 232)),  # tied: the embedding is the head
        ([EMBEDDING, HEAD, MATRIX], {}, StepWork(170, 232)),  # not tied: it is only looked up
        ([MATRIX, EXPERTS], MIXTURE, StepWork(100 + 200, 32 + 64)),
        ([MATRIX, EXPERTS], {}, StepWork(900, 32 + 256)),
    ],
)
def test_matrices_count_once_and_what_is_not_read_does_not(
    tensors: list[TensorInfo], metadata: dict[str, object], expected: StepWork
) -> None:
    assert work_of(tensors, metadata) == expected


def test_a_file_is_counted_from_its_header(tiny_gguf: Path) -> None:
    with open_gguf(tiny_gguf) as file:
        work = step_work(file)
    matrices = 262 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32
    assert work == StepWork(matrices // 32 * 18, matrices)
