"""What one answer may cost: its automaton goes with it, and one that reaches a limit says so and harms no other."""

from __future__ import annotations

import ctypes
import gc
import random
import weakref
from pathlib import Path

import pytest

from tests.backends.grammar.conftest import allowed, compiled, feed
from tripower.actors.constraining import no_token_error
from tripower.backends.grammar import GrammarConstraint, GrammarVocabulary, formats
from tripower.backends.text.layer import GgufTextLayer
from tripower.runtime.engine.constraint import ExplainedConstraint, RegexFormat

HEAVY = RegexFormat(
    "(" + "|".join(f"[a-z ]*{letter}[a-z ]{{{60 + at}}}" for at, letter in enumerate("abcdefghij")) + ")*x{9000}"
)


def write(constraint: GrammarConstraint, tokens_max: int) -> int:
    """Any text of the format, until nothing may follow; its length."""
    draws = random.Random(1)
    for length in range(tokens_max):
        if not (choices := allowed(constraint.mask())):
            return length
        constraint.accept(draws.choice(choices))
    return tokens_max


def test_an_answer_that_reaches_a_limit_says_which_and_harms_no_other(
    toy: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LEXER_STATES_MAX", 5000)
    format = compiled(HEAVY, toy)
    for _ in range(2):  # the second is not broken by the first
        constraint = format.new_constraint("guided_regex")
        assert 100 < write(constraint, 2000) < 2000
        assert isinstance(constraint, ExplainedConstraint) and "more states" in constraint.exhausted
        error = no_token_error(constraint)
        assert (error.code, error.status, error.param) == ("format_exhausted", 400, "guided_regex")
        assert "more states" in error.message


def test_logits_are_to_blame_where_the_format_allows_something(toy: GrammarVocabulary) -> None:
    constraint = compiled(RegexFormat("ab"), toy).new_constraint()
    assert constraint.mask().any() and no_token_error(constraint).code == "invalid_logits"
    assert no_token_error(None).code == "invalid_logits"


def resident_mib() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def test_what_an_answer_has_grown_goes_with_it(toy: GrammarVocabulary) -> None:
    """Ten formats whose automata grow by some 15 MB each."""
    format = compiled(HEAVY, toy)
    write(format.new_constraint(), 900)
    before = resident_mib()
    for number in range(10):
        other = compiled(RegexFormat(HEAVY.pattern + "y" * number), toy)
        write(other.new_constraint(), 900)
    assert resident_mib() - before < 60


def test_a_format_keeps_no_automaton(toy: GrammarVocabulary) -> None:
    format = compiled(RegexFormat("a+b"), toy)
    constraint = format.new_constraint()
    kept = weakref.ref(constraint)
    assert feed(constraint, [ord("a")])
    del constraint
    gc.collect()
    assert kept() is None and format in toy.compiled.values()


@pytest.mark.parametrize("count", [700, 1000])
def test_as_many_optional_properties_as_are_taken_can_be_written(
    count: int, smollm2: GrammarVocabulary, smollm2_text: GgufTextLayer
) -> None:
    schema = {
        "type": "object",
        "properties": {f"p{at}": {"type": "string"} for at in range(count)},
        "additionalProperties": False,
    }
    constraint = compiled(schema, smollm2).new_constraint()
    assert feed(constraint, smollm2_text.tokenize(f'{{"p0": "abc", "p{count - 1}": "x', add_special=False))
    assert constraint.mask().any()
