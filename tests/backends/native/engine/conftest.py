"""Engines that are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.native.engine.rigs import MakeEngine, build_engine
from tripower.backends.picolm.native.engine import NativeEngine


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """`make_engine(path, threads=2, rows_max=8, element="f16", …)`: see `rigs.build_engine`."""
    made: list[NativeEngine] = []

    def make(path: Path, **options: Any) -> NativeEngine:
        made.append(build_engine(path, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
