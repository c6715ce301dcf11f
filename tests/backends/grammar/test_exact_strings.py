"""Strings and keys hold what their schema says once they are decoded, however they might be spelt."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.grammar.conftest import accepts, compiled, walk
from tripower.backends.grammar import GrammarVocabulary, grammar_vocabulary
from tripower.backends.grammar.patterns import PatternRefused, portable_pattern
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine.constraint import LarkFormat
from tripower.runtime.kernel.errors import InvalidRequest

_TEXT = ToyText()
_VOCABULARY = grammar_vocabulary(_TEXT, 257)


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        ('^[^\\\\/:*?"<>|]{1,40}$', ['"', "\\", "C:"], ["a b"]),
        ('^[^"]$', ['"'], ["\\", "a", "é"]),
        ("^[^\\\\]$", ["\\"], ['"']),
        ("^[\\x00-\\x1f]$", ['"', "\\", "a"], ["\n", "\t"]),
        ("^.$", ["\n", "\r"], ['"', "\\"]),
        ("^\\W$", ["a"], ['"', "é"]),
        ("^\\S$", ["\u00a0", "\ufeff", " "], ["x"]),
        ("^[[]$", ["a"], ["["]),
        ("^(?<name>a)b+?$", ["b"], ["ab"]),
        ("^\\p{Lu}[^\\p{L}]$", ["ab", "É\x01"], ["É1"]),
        ("^\\uD83D\\uDE00$", ["x"], ["😀"]),
    ],
)
def test_a_pattern_holds_of_the_decoded_text(pattern: str, bad: list[str], good: list[str], toy: GrammarVocabulary) -> None:
    for schema in (
        {"type": "string", "pattern": pattern},
        {"allOf": [{"type": "string", "pattern": pattern}, {"maxLength": 40}]},
    ):
        assert not any(accepts(schema, json.dumps(text, ensure_ascii=False), toy) for text in bad)
        assert all(accepts(schema, json.dumps(text, ensure_ascii=False), toy) for text in good)


def test_a_schema_in_a_grammar_has_the_same_patterns(toy: GrammarVocabulary) -> None:
    format = LarkFormat('start: %json {"type": "string", "pattern": "^[^\\"]$"}')
    assert accepts(format, '"a"', toy) and not accepts(format, '"\\""', toy)


@pytest.mark.parametrize(
    "pattern",
    [
        "[[:alpha:]]",
        "^[a-z&&[^b]]$",
        "\\Aab\\z",
        "[a--b]",
        "(?i)a",
        "(?=a)b",
        "(a)\\1",
        "a{,3}",
        "\\x00",
        "[]",
        "a)",
        "(a",
        "[z-a]",
        "a++",
    ],
)
def test_what_others_read_differently_is_refused_with_its_place(pattern: str, toy: GrammarVocabulary) -> None:
    for schema, place in (({"pattern": pattern}, "/pattern"), ({"patternProperties": {pattern: {}}}, "/patternProperties/")):
        with pytest.raises(InvalidRequest) as caught:
            compiled({"type": "object", "properties": {"a": schema}}, toy)
        assert caught.value.code == "unsupported_schema"
        assert (caught.value.param or "").startswith(f"the.field/properties/a{place}")


@settings(deadline=None, max_examples=200)
@given(pattern=st.text(alphabet='ab"\\^$.[]()|*+?{}1,-wdspP\x01é', max_size=8))
def test_a_portable_pattern_stays_as_it_is(pattern: str) -> None:
    try:
        once = portable_pattern(pattern)
    except PatternRefused:
        return
    assert portable_pattern(once) == once


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}, '{"\\u0061": 1}'),
        ({"properties": {'q"': {"type": "string"}}, "additionalProperties": {"type": "integer"}}, '{"q\\u0022": 1}'),
        ({"properties": {"t\n": {"type": "string"}}, "additionalProperties": {"type": "integer"}}, '{"t\\u000a": 1}'),
        ({"patternProperties": {"^x": {"type": "string"}}}, '{"\\u0078": 1}'),
        ({"patternProperties": {'^[^"]$': {"type": "integer"}}, "additionalProperties": False}, '{"\\"": 1}'),
    ],
)
def test_a_key_is_no_other_key_in_disguise(schema: dict[str, Any], document: str, toy: GrammarVocabulary) -> None:
    assert not accepts({"type": "object", **schema}, document, toy)


def test_a_value_that_no_answer_can_spell_is_refused(toy: GrammarVocabulary) -> None:
    with pytest.raises(InvalidRequest, match="control character"):
        compiled({"enum": ["a", {"b": ["\x01"]}]}, toy)


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["0", "-9007199254740993"], ["9223372036854775808"]),
        ({"type": "integer", "maximum": 2**53 + 3}, [str(2**53)], [str(2**53 + 4)]),
        ({"type": "number", "minimum": 0, "maximum": 2**63 - 1}, ["1.5"], ["-1"]),
    ],
)
def test_bounds_of_64_bits_are_kept(bounds: dict[str, Any], good: list[str], bad: list[str], toy: GrammarVocabulary) -> None:
    assert all(accepts(bounds, text, toy) for text in good)
    assert not any(accepts(bounds, text, toy) for text in bad)


def test_patterns_of_names_that_overlap_are_named(toy: GrammarVocabulary) -> None:
    with pytest.raises(InvalidRequest, match="`patternProperties` cannot be enforced: two of its patterns") as caught:
        compiled({"type": "object", "patternProperties": {"^a": {}, "b": {}}, "additionalProperties": False}, toy)
    assert caught.value.param == "the.field/patternProperties"


_PATTERNS = st.sampled_from(['^[^"]{1,2}$', "^[^\\\\]?$", "^a", '^[\\n"]+$', "^(x|\\\\)", '^[^a"]*$', "^\\d{2}$", "^.[ -~]$"])
_STRINGS = st.one_of(
    st.just({"type": "string", "maxLength": 3}),
    _PATTERNS.map(lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 5}),
    st.lists(_PATTERNS, min_size=1, max_size=1).map(
        lambda each: {"allOf": [{"pattern": each[0]}, {"type": "string", "maxLength": 4}]}
    ),
)
_NAMES = st.dictionaries(st.sampled_from(["a", 'q"', "t\n", "\\"]), _STRINGS, max_size=3)
_OTHERS = st.one_of(st.just({"type": "integer", "minimum": 0, "maximum": 9}), st.just(False), _STRINGS)


def unlike(known: set[str]) -> Any:
    """A reader of objects that refuses a declared name that stands twice."""

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs if name in known]
        assert len(names) == len(set(names)), pairs
        return dict(pairs)

    return read


@settings(deadline=None, max_examples=60)
@given(names=_NAMES, by_pattern=st.dictionaries(_PATTERNS, _STRINGS, max_size=1), others=_OTHERS, seed=st.integers(0, 999))
def test_whatever_is_drawn_validates_and_no_declared_name_stands_twice(
    names: dict[str, Any], by_pattern: dict[str, Any], others: Any, seed: int
) -> None:
    schema = {"type": "object", "properties": names, "patternProperties": by_pattern, "additionalProperties": others}
    try:
        format = compiled(schema, _VOCABULARY)
    except InvalidRequest as error:
        assert error.code in ("unsupported_schema", "invalid_schema")
        return
    document = json.loads(walk(format.new_constraint(), _TEXT, seed, wild=40), object_pairs_hook=unlike(set(names)))
    jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
