"""The model that a bench is about."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tripower.bench.measured_model import bar, describe_model, find_measured_model
from tripower.runtime.kernel import InvalidConfiguration


def write_model(path: Path, *, basename: str | None, size: str | None, file_type: int | None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if basename:
        writer.add_basename(basename)
    if size:
        writer.add_size_label(size)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("basename", "size", "file_type", "name", "encoding"),
    [
        ("smollm2", "135M", 3, "smollm2-135m", "Q4_1"),
        ("gemma-3", "270M", 15, "gemma-3-270m", "Q4_K_M"),
        ("only", None, 2, "only", "Q4_0"),
        (None, None, None, "some-file", "?"),
        (None, None, 9999, "some-file", "?"),
    ],
)
def test_a_model_is_called_what_its_header_says(
    basename: str | None, size: str | None, file_type: int | None, name: str, encoding: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "some-file.gguf", basename=basename, size=size, file_type=file_type)
    found = describe_model(path)
    assert (found.name, found.encoding) == (name, encoding)
    assert found.size_bytes == path.stat().st_size
    assert str(path) not in str(found.described())


def test_a_path_is_found_as_it_is(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", basename="a", size="1M", file_type=3)
    assert find_measured_model(str(path), None, lambda text: None).path == path.resolve()


def test_the_toy_has_no_file() -> None:
    with pytest.raises(InvalidConfiguration, match="toy"):
        find_measured_model("toy", None, lambda text: None)


@pytest.mark.parametrize(("done", "filled"), [(0.0, 0), (0.5, 15), (1.0, 30)])
def test_a_bar_fills_up(done: float, filled: int) -> None:
    assert bar(done).count("#") == filled
    assert bar(done).endswith(f"{done:.0%}")
