"""What of an overview is on a screen of which size."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.api.overview.overviews import overview, path
from tripower.api.overview.columns import Column, fit
from tripower.api.overview.figures import IdentityOverview, Overview
from tripower.api.overview.sheet import SORTS, Sheet, allot, sheet


def lines(seen: Overview, width: int = 80, height: int = 23, **options: str) -> list[str]:
    return [line.plain for line in sheet(seen, width, height, **options)]


@pytest.mark.parametrize(("width", "height"), [(60, 23), (80, 23), (100, 30), (200, 60), (80, 12), (61, 5), (40, 10)])
def test_every_line_is_as_wide_as_the_screen_and_there_are_not_too_many(width: int, height: int) -> None:
    shown = sheet(overview(), width, height)
    assert {line.cell_len for line in shown} == {width}
    assert len(shown) <= height


def test_a_screen_of_80_columns_has_all_ten_requests_and_what_matters_of_them() -> None:
    text = "\n".join(lines(overview()))
    for number in range(10):
        assert f"request-{number:02}" in text or f"request-{number:02}"[:9] in text
    for word in (
        "231",
        "peak",
        "8/16",
        "62/81/90 ms",
        "1.5/1.8/2.0 s",
        "45%",
        "62%",
        "key_1 (Ada)",
        "75%",
        "98%",
        "steps smollm2",
    ):
        assert word in text, word
    for word in (
        "127.0.0.1:8420",
        "ok",
        "up 1h02m",
        "AGE",
        "WAITED",
        "PROMPT",
        "ANSWER",
        "TOKENS",
        "1m40s",
        "250ms",
        "500ms",
        "3.00s",
    ):
        assert word in text, word


def test_a_narrow_screen_keeps_the_place_and_the_age() -> None:
    text = "\n".join(lines(overview(), width=60))
    for word in ("PLACE", "AGE", "TOKENS", "answer", "1m40s", "8/16", "231"):
        assert word in text, word


def test_a_wide_screen_leaves_nothing_out() -> None:
    text = "\n".join(lines(overview(), width=170, height=40))
    for word in (
        "pid 4711",
        "STATE",
        "MEMORY",
        "PROMPT/S",
        "SOCKET",
        "LEFT",
        "2.00s",
        "key_1 (Ada)",
        "request-09",
        "refused/s",
    ):
        assert word in text, word


def test_columns_stay_where_they_are_whatever_the_figures() -> None:
    calm = overview(requests=(path(0, answer=None, tokens_per_second=None, label=""),))
    heads = [[line for line in lines(seen) if "REQUEST" in line] for seen in (overview(), calm)]
    assert heads[0] == heads[1] != []


def test_an_idle_server_shows_its_tables_without_rows() -> None:
    idle = overview(running=0, waiting=0, tokens_per_second=0.0, requests=(), identities=(), history=(), models=(), devices=())
    text = "\n".join(lines(idle))
    assert "REQUEST" in text and "peak" not in text


def test_what_is_wrong_is_said() -> None:
    failing = overview(status="failing", reasons=("cpu0 passes no step boundary any more",))
    assert "failing" in lines(failing)[0]
    assert "cpu0 passes no step boundary any more" in lines(failing)[1]


def test_more_keys_than_lines_are_counted() -> None:
    many = overview(identities=tuple(IdentityOverview(label=f"k{n}", running=1, waiting=0, share=0.05) for n in range(20)))
    shown = lines(many)
    text = "\n".join(shown)
    assert len(shown) == 23
    assert "k0" in text and "k19" not in text and "more" in text
    assert sum(f"k{n} " in text for n in range(20)) + int(text.split("and ")[1].split(" more")[0]) == 20


def test_the_selected_request_is_on_the_screen_however_small_it_is() -> None:
    shown = sheet(overview(), 80, 13, selected="request-09")
    (line,) = (line for line in shown if line.plain.startswith("› "))
    assert "request-09" in line.plain and "reverse" in str(line.style)


@pytest.mark.parametrize(
    ("sort", "first"), [("age", "request-00"), ("tokens", "request-09"), ("tokens/s", "request-09"), ("waited", "request-03")]
)
def test_requests_are_in_the_order_that_was_asked_for(sort: str, first: str) -> None:
    requests = tuple(path(number, waiting=5.0 if number == 3 else 0.1) for number in range(10))
    shown = lines(overview(requests=requests), sort=sort)
    head = next(number for number, line in enumerate(shown) if "REQUEST" in line)
    assert first in shown[head + 1]


def test_every_order_can_be_asked_for() -> None:
    places = ("arriving", "waiting", "prompt", "answer", "socket", "elsewhere")
    mixed = overview(requests=tuple(path(number, place=place, waiting=None) for number, place in enumerate(places)))
    for sort in SORTS:
        assert len(lines(mixed, sort=sort)) <= 23


def test_what_others_chose_is_shown_as_it_is() -> None:
    shown = lines(overview(requests=(path(0, id="[bold]x[/]", label="\x1b[31mred 漢字漢字漢字漢字"),)), width=160)
    text = "\n".join(shown)
    assert "[bold]x[/]" in text and "\ufffd[31mred" in text and "\x1b" not in text
    assert {len(line) + sum(0x2E80 < ord(character) < 0xFFF0 for character in line) for line in shown} == {160}


def test_the_plain_sheet_is_as_long_as_it_takes_and_has_no_escapes() -> None:
    out = io.StringIO()
    many = overview(identities=tuple(IdentityOverview(label=f"k{n}", running=1, waiting=0, share=0.05) for n in range(20)))
    Console(file=out, width=100).print(Sheet(many))
    text = out.getvalue()
    assert "k19" in text and "request-09" in text and "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_lines_are_shared_out_and_requests_get_more() -> None:
    assert allot([1, 2, 1, 10], 14) == [1, 2, 1, 10]
    assert allot([5, 5, 5, 10], 10) == [2, 2, 2, 4]
    assert allot([1, 0, 1, 10], 5) == [1, 0, 1, 3]
    assert allot([3, 3, 3, 3], 0) == [0, 0, 0, 0]


def test_columns_are_left_out_by_what_they_are_worth_and_the_rest_grows() -> None:
    columns = [
        Column[str](title="A", cell=str, width=5, width_max=20),
        Column[str](title="B", cell=str, width=5, keep=1),
        Column[str](title="C", cell=str, width=5, keep=2),
    ]
    assert [(column.title, width) for column, width in fit(columns, 17)] == [("A", 5), ("B", 5), ("C", 5)]
    assert [(column.title, width) for column, width in fit(columns, 16)] == [("A", 10), ("C", 5)]
    assert [(column.title, width) for column, width in fit(columns, 100)] == [("A", 20), ("B", 5), ("C", 5)]
    assert [(column.title, width) for column, width in fit(columns, 3)] == [("A", 5)]
