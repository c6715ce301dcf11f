"""What the tests of the backend `llamacpp` share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tripower.backends.llamacpp.pair import Pair, find_pair
from tripower.runtime.kernel.errors import ModelRefused

Result = TypeVar("Result")
Finish = Callable[[Generator[None, None, Any]], Any]


@pytest.fixture(autouse=True)
def installed() -> None:
    if not all(importlib.util.find_spec(name) for name in ("cffi", "llama_cpp_py_sync", "xllamacpp")):
        pytest.skip("the llamacpp extra is not installed")


@pytest.fixture
def pair() -> Pair:
    """What is installed."""
    return find_pair()


@pytest.fixture
def finish() -> Finish:
    """Runs a load or a probe to its end and gives what it returns."""

    def run(generator: Generator[None, None, Result]) -> Result:
        while True:
            try:
                next(generator)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # a StopIteration does not say what it carries

    return run


@pytest.fixture
def refusal(load_llamacpp: Any) -> Callable[..., ModelRefused]:
    """`refusal(path, context=…)` is what a load is refused with."""

    def load(path: Path, **changes: Any) -> ModelRefused:
        with pytest.raises(ModelRefused) as caught:
            load_llamacpp(path, **changes)
        return caught.value

    return load


@pytest.fixture
def strange_library(tmp_path: Path) -> Iterator[Path]:
    """A file that calls itself a library and is none."""
    path = tmp_path / "libllama.so"
    path.write_bytes(b"\x7fELF" + os.urandom(4096))
    yield path
