"""What keys do to the live screen, and what is on it then."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from tests.api.overview.overviews import overview, path
from tripower.api.cli.top.screen import Screen
from tripower.api.cli.top.view import HELP, Cancel, Follow, Mode, Quit, Redraw, Unfollow, View


def busy() -> View:
    view = View()
    view.show(overview())
    return view


def drawn(view: View, width: int = 80, height: int = 24) -> list[str]:
    """The screen as lines; they fill it."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(Screen(view), end="")
    lines = Text.from_ansi(capture.get()).plain.split("\n")
    assert len(lines) == height
    assert {Text(line).cell_len for line in lines} == {width}
    return lines


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (140, 50), (80, 6), (30, 4)])
def test_the_screen_is_full_in_every_mode_and_size(width: int, height: int) -> None:
    view = View()
    drawn(view, width, height)
    view.show(overview())
    for mode in Mode:
        view.mode = mode
        drawn(view, width, height)


def test_before_the_first_answer_it_says_so() -> None:
    assert "waiting for the first figures" in drawn(View())[0]
    view = View()
    for key in ("up", "down", "s", "c", "t", "p", "home"):
        assert view.press(key) is None


def test_the_last_line_has_the_keys() -> None:
    assert "q quit   s sort: age   ↑↓ select   c cancel   t trace   p pause   ? help" in drawn(busy())[-1]


def test_arrows_select_and_the_selection_stays_with_its_request() -> None:
    view = busy()
    for key, selected in (
        ("down", 0),
        ("down", 1),
        ("up", 0),
        ("up", 0),
        ("end", 9),
        ("down", 9),
        ("home", 0),
        ("j", 1),
        ("k", 0),
    ):
        view.press({"j": "down", "k": "up"}.get(key, key))
        assert view.selected == f"request-{selected:02}"
    view.press("up")
    for _ in range(3):
        view.press("s")
    assert view.sort == "tokens" and view.selected == "request-00"
    (line,) = (line for line in drawn(view) if line.startswith("› "))
    assert "request-00" in line
    view.press("escape")
    assert view.selected is None


def test_up_without_a_selection_takes_the_last() -> None:
    view = busy()
    view.press("up")
    assert view.selected == "request-09"


def test_s_goes_through_all_orders_and_comes_back() -> None:
    view = busy()
    orders = []
    for _ in range(7):
        orders.append(view.sort)
        view.press("s")
    assert view.sort == orders[0] == "age" and len(set(orders)) == 7


def test_cancelling_asks_first() -> None:
    view = busy()
    view.press("down")
    assert view.press("c") is None
    assert "cancel request-00 of smollm2, 0 tokens after 1m40s? y/n" in drawn(view)[-1]
    assert view.press("n") is None and "not cancelled" in drawn(view)[-1]
    view.press("c")
    assert view.press("y") == Cancel("request-00") and view.mode is Mode.LIST


@pytest.mark.parametrize("key", ["escape", "q", "enter", "c", "x"])
def test_everything_but_y_cancels_nothing(key: str) -> None:
    view = busy()
    view.press("down")
    view.press("c")
    assert view.press(key) is None
    assert view.mode is Mode.LIST


def test_a_request_that_has_ended_is_never_replaced_by_another() -> None:
    view = busy()
    view.press("down")
    view.show(overview(requests=(path(5), path(6))))
    assert view.press("c") is None and view.mode is Mode.LIST
    assert "select a request first" in drawn(view)[-1]
    view.show(overview(requests=()))
    view.press("t")
    assert "no request runs or waits" in drawn(view)[-1]


def test_the_question_is_about_the_request_that_was_selected_when_it_was_asked() -> None:
    view = busy()
    view.press("down")
    view.press("c")
    view.show(overview(requests=(path(5),)))
    assert "cancel request-00? y/n" in drawn(view)[-1]
    assert view.press("y") == Cancel("request-00"), "which the server then refuses"


def test_a_trace_shows_its_end_and_esc_comes_back() -> None:
    view = busy()
    view.press("down")
    assert view.press("t") == Follow("request-00")
    for number in range(3000):
        view.traced.append(Text(f"item {number}"))
    lines = drawn(view)
    assert "item 2999" in lines[22] and "item 2977" in lines[0]
    assert "trace of request-00, which goes on   Esc back" in lines[-1]
    view.traced_all = True
    assert "has ended" in drawn(view)[-1]
    assert view.press("s") is None
    assert view.press("escape") == Unfollow()
    assert "q quit" in drawn(view)[-1]
    view.press("t")
    assert not view.traced and not view.traced_all


def test_a_paused_screen_stands_still() -> None:
    view = busy()
    view.press("p")
    view.show(overview(running=77))
    assert view.overview is not None and view.overview.running == 8
    assert "PAUSED" in drawn(view)[-1]
    view.press("p")
    view.show(overview(running=77))
    assert view.overview.running == 77


def test_help_explains_the_keys_and_any_key_ends_it() -> None:
    view = busy()
    view.press("?")
    text = "\n".join(drawn(view, 110, 24))
    assert all(line in text for line in HELP)
    assert view.press("q") is None and view.mode is Mode.LIST


def test_the_help_fits_80_columns_and_24_lines() -> None:
    assert max(map(len, HELP)) <= 78 and len(HELP) <= 22


def test_a_silent_server_is_noticed() -> None:
    view = busy()
    view.silence = 4.2
    assert "no answer for 4.20s" in drawn(view)[-1]
    view.show(overview())
    assert "no answer" not in drawn(view)[-1]


def test_leaving_and_redrawing() -> None:
    assert busy().press("q") == Quit()
    assert busy().press("redraw") == Redraw()
