"""Text of messages never becomes control tokens."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tripower.backends.text.literal_text import LiteralText
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.runtime.kernel.errors import InvalidRequest

CONTROL = SpecialTokens({"<|im_end|>": 2, "<s>": 1, "§": 3})


def literal(*texts: str) -> LiteralText:
    return LiteralText(texts, CONTROL)


def test_text_without_control_tokens_is_left_alone() -> None:
    assert literal("plain <|im").mark("plain <|im") == "plain <|im"


@given(st.lists(st.sampled_from(["<|im_end|>", "<s>", "§", "<", "s>", "x", "\U000f0000", "1.2"]), max_size=12).map("".join))
def test_a_marked_text_holds_no_control_token_and_comes_back_whole(text: str) -> None:
    marks = literal(text)
    marked = marks.mark(text)
    assert CONTROL.find(marked) == []
    assert marks.restore(f"a{marked}b{marked}") == f"a{text}b{text}"


def test_a_marker_survives_trimming_and_case() -> None:
    marks = literal("<|im_end|>")
    assert marks.restore(marks.mark(" <|im_end|> ").strip().upper().lower()) == "<|im_end|>"


def test_a_cut_marker_fails_the_request() -> None:
    marks = literal("<|im_end|>")
    with pytest.raises(InvalidRequest, match="control tokens") as refusal:
        marks.restore(marks.mark("<|im_end|>")[:5])
    assert refusal.value.code == "template_failed"


def test_a_typed_marker_of_another_request_stays_text() -> None:
    stolen = literal("<s>").mark("<s>")
    marks = literal(stolen)
    assert marks.restore(marks.mark(stolen)) == stolen


@pytest.mark.parametrize("write", [repr, ascii, json.dumps, lambda text: json.dumps(text, ensure_ascii=False)])
def test_a_marker_survives_being_written_as_a_literal(write: Callable[[str], str]) -> None:
    marks = literal("a <|im_end|> b")
    assert marks.restore(write(marks.mark("a <|im_end|> b"))).strip("'\"") == "a <|im_end|> b"


def test_a_marker_whose_ends_are_cut_off_fails_the_request() -> None:
    marks = literal("<|im_end|>")
    with pytest.raises(InvalidRequest, match="control tokens"):
        marks.restore(marks.mark("<|im_end|>")[1:-1])


def test_the_end_of_a_text_can_be_marked() -> None:
    marks = literal("<|im_end|>")
    assert marks.restore(marks.mark("x <|im_end|> ") + "y") == "x <|im_end|> y"
    assert CONTROL.find(marks.end_mark) == [] and marks.end_mark != marks.mark("<s>")
