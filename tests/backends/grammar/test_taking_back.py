"""Constraints go back to where they stood: their masks are those of a text that never went on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.grammar import compile_constraint
from tripower.backends.toy import ToyText
from tripower.backends.toy.engine import END, VOCABULARY
from tripower.runtime.engine.constraint import JsonSchemaFormat, RegexFormat

FORMATS = (
    RegexFormat("(ab|ba)*c{1,3}"),
    JsonSchemaFormat({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}),
)


def allowed(constraint: Any) -> list[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits[:VOCABULARY])]


@settings(deadline=None, max_examples=40)
@given(which=st.sampled_from(FORMATS), seed=st.integers(0, 999), steps=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_what_is_taken_back_leaves_no_trace(which: Any, seed: int, steps: list[int]) -> None:
    chance = random.Random(seed)
    constraint = compile_constraint(which, ToyText(), VOCABULARY)
    text: list[int] = []
    for count in steps:
        ahead: list[int] = []
        for _ in range(count):
            choices = allowed(constraint)
            ahead.append(chance.choice(choices) if choices and chance.random() < 0.9 else chance.randrange(VOCABULARY))
            constraint.accept(ahead[-1])
        back = chance.randint(0, count)
        constraint.take_back(back)
        text += ahead[: count - back]
        fresh = compile_constraint(which, ToyText(), VOCABULARY)
        for token in text:
            fresh.accept(token)
        assert allowed(constraint) == allowed(fresh)


def test_a_prefix_is_valid_as_far_as_masks_would_allow_it() -> None:
    constraint = compile_constraint(RegexFormat("ab?c"), ToyText(), VOCABULARY)
    assert constraint.valid_prefix(list(b"abc")) == 3 and constraint.valid_prefix(list(b"abx")) == 2
    assert constraint.valid_prefix(list(b"xab")) == 0
    constraint.accept(ord("a"))
    assert constraint.valid_prefix(list(b"c")) == 1 and constraint.valid_prefix(list(b"a")) == 0
    constraint.accept(ord("c"))
    constraint.accept(END)
    assert constraint.valid_prefix(list(b"abc")) == 0
    constraint.take_back(3)
    assert constraint.valid_prefix(list(b"abc")) == 3
