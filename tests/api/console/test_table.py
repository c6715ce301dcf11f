"""Tables of the console at all widths of a terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tripower.api.console.table import FittedTable, width_of

CELLS = {
    "MODEL": ["smollm2", "gemma3-270m"],
    "STATE": ["loaded", "failed: the file is cut off"],
    "NOTHING": ["", ""],
    "KERNELS": ["native code for x86_64-avx2", ""],
    "SEATS": ["3/16", ""],
}
TABLE = FittedTable(cells=CELLS, left=("MODEL", "STATE", "KERNELS"), spare=("KERNELS", "SEATS"), styles=["bold", ""])


def rendered(table: FittedTable, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False, emoji=False).print(table)
    return out.getvalue()


def test_where_there_is_room_every_column_that_says_anything_is_there() -> None:
    lines = rendered(TABLE, 100).splitlines()
    assert lines[0].split() == ["MODEL", "STATE", "KERNELS", "SEATS"]
    assert lines[1].split() == ["smollm2", "loaded", "native", "code", "for", "x86_64-avx2", "3/16"]
    assert len(lines) == 3


def test_columns_that_can_be_done_without_go_first_and_are_named() -> None:
    lines = rendered(TABLE, 60).splitlines()
    assert [line.split()[0] for line in lines] == ["MODEL", "smollm2", "gemma3-270m", "no"]
    assert lines[0].split() == ["MODEL", "STATE", "SEATS"] and lines[-1] == "no room for KERNELS"
    assert rendered(TABLE, 42).splitlines()[-1] == "no room for KERNELS, SEATS"


@pytest.mark.parametrize("width", [24, 30, 40])
def test_the_first_column_is_whole_as_long_as_it_takes_half_of_the_width(width: int) -> None:
    text = rendered(TABLE, width)
    assert all(name in text for name in ("smollm2", "gemma3-270m", "failed:")), text


@given(st.integers(1, 120), st.lists(st.text(max_size=30), min_size=1, max_size=3))
def test_no_width_and_no_text_is_too_much(width: int, names: list[str]) -> None:
    figures = [str(len(name)) for name in names]
    table = FittedTable(cells={"NAME": names, "LENGTH": figures}, left=("NAME",), spare=("LENGTH",))
    assert rendered(table, width)
    assert width_of(table.cells) > 0
