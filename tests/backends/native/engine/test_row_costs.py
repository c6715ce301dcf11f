"""What a step costs by its rows: measured once, kept, and never less than nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.native.engine.rigs import build_engine, run_to_end
from tripower.backends.picolm.native import row_costs
from tripower.backends.picolm.native.row_costs import measure_row_costs, plausible


@pytest.mark.parametrize(
    ("measured", "kept"),
    [
        ([1.0], [1.0]),
        ([1.0, 1.1, 1.5, 2.5], [1.0, 1.1, 1.5, 2.5]),
        ([1.0, 0.9, 1.5], [1.0, 1.0, 1.5]),
        ([1.0, 1.0, 1.978, 7.091, 11.592], [1.0, 1.0, 1.978, 3.956, 7.912]),
    ],
)
def test_more_rows_cost_no_less_and_twice_as_many_no_more_than_twice_as_much(measured: list[float], kept: list[float]) -> None:
    assert plausible(measured) == kept


def test_a_table_is_measured_once_and_kept(tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPOWER_KERNEL_CACHE", str(tmp_path))
    engine = build_engine(tiny_model("llama", layers=1))
    first = run_to_end(measure_row_costs(engine, ("this",)))
    assert len(first) == 5 and first[0] == 1 and engine.sequences() == []
    monkeypatch.setattr(row_costs, "_measure", None)
    assert run_to_end(measure_row_costs(engine, ("this",))) == first
    with pytest.raises(TypeError):
        run_to_end(measure_row_costs(engine, ("that",)))
    engine.close()


def test_a_context_with_room_for_few_rows_is_measured_as_far_as_it_goes(
    tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPOWER_KERNEL_CACHE", str(tmp_path))
    for context, count in ((37, 3), (20, 0)):
        engine = build_engine(tiny_model("llama", layers=1), context=context)
        assert len(run_to_end(measure_row_costs(engine, (context,)))) == count
        engine.close()
