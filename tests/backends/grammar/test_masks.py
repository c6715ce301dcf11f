"""What a constraint allows, token by token: text, control tokens, ends, and nothing else."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.grammar.conftest import TOY_SIZE, accepts, allowed, compiled, feed, walk
from tripower.backends.grammar import GrammarVocabulary, compile_constraint, grammar_vocabulary, json_schema_rule
from tripower.backends.text.layer import GgufTextLayer
from tripower.backends.toy.engine import END
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine.constraint import ChoiceFormat, GbnfFormat, JsonObjectFormat, LarkFormat, RegexFormat
from tripower.runtime.kernel.errors import InvalidRequest

ANYTHING = RegexFormat("(?s:.*)")


def test_a_mask_has_a_bit_for_every_token_of_the_engine(toy: GrammarVocabulary) -> None:
    constraint = compiled(ANYTHING, toy).new_constraint()
    mask = constraint.mask()
    assert mask.dtype == np.uint32 and mask.shape == ((TOY_SIZE + 31) // 32,)
    assert constraint.mask() is mask
    assert max(allowed(mask)) == END


def test_control_tokens_are_no_text(smollm2: GrammarVocabulary, smollm2_text: GgufTextLayer) -> None:
    control = {token for token in range(smollm2.size) if not smollm2_text.piece(token)}
    assert len(control) > len(smollm2.ends)
    constraint = compiled(ANYTHING, smollm2).new_constraint()
    for token in smollm2_text.tokenize("A <|im_start|> in plain text", add_special=False):
        assert control & set(allowed(constraint.mask())) == smollm2.ends
        constraint.accept(token)
    inside = compiled({"type": "string"}, smollm2).new_constraint()
    assert feed(inside, smollm2_text.tokenize('"ab', add_special=False))
    assert not control & set(allowed(inside.mask()))


def test_a_grammar_names_control_tokens(smollm2: GrammarVocabulary, smollm2_text: GgufTextLayer) -> None:
    grammar = 'start: <repo_name> "x" <[4-5]> ' + json_schema_rule({"type": "object", "maxProperties": 0})
    constraint = compiled(LarkFormat(grammar), smollm2).new_constraint()
    (name,) = smollm2_text.tokenize("<repo_name>", add_special=False, parse_special=True)
    assert allowed(constraint.mask()) == [name]
    assert feed(constraint, [name, *smollm2_text.tokenize("x", add_special=False)])
    assert set(allowed(constraint.mask())) == {4, 5}
    assert feed(constraint, [5, *smollm2_text.tokenize("{}", add_special=False)])
    assert set(allowed(constraint.mask())) == smollm2.ends


def test_the_text_of_a_control_token_in_quotes_is_plain_text(smollm2: GrammarVocabulary, smollm2_text: GgufTextLayer) -> None:
    constraint = compiled(LarkFormat('start: "<|im_start|>"'), smollm2).new_constraint()
    assert all(smollm2_text.piece(token) for token in allowed(constraint.mask()))
    assert feed(constraint, smollm2_text.tokenize("<|im_start|>", add_special=False))


def test_text_may_be_cut_into_tokens_in_any_way(smollm2: GrammarVocabulary, smollm2_text: GgufTextLayer) -> None:
    for parts in ([b"hello", b" world"], [b"h", b"ello", b" w", b"orld"]):
        ids = {smollm2_text.piece(token): token for token in range(smollm2.size)}
        assert feed(compiled(RegexFormat("hello world"), smollm2).new_constraint(), [ids[part] for part in parts])


@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=12))
def test_characters_split_over_byte_tokens_are_whole_characters(text: str) -> None:
    constraint = compile_constraint(ANYTHING, _TEXT, 257)
    for byte in text.encode():
        assert byte in allowed(constraint.mask())
        constraint.accept(byte)
    assert END in allowed(constraint.mask())


_TEXT = ToyText()


@pytest.mark.parametrize("broken", [b"\xff", b"\x80", b"\xc3(", b"\xed\xa0\x80", b"\xf5"])
def test_bytes_that_are_no_utf8_are_never_allowed(broken: bytes, toy: GrammarVocabulary) -> None:
    assert not feed(compiled(ANYTHING, toy).new_constraint(), list(broken))


def test_half_a_character_cannot_end_a_text(toy: GrammarVocabulary) -> None:
    constraint = compiled(ANYTHING, toy).new_constraint()
    assert feed(constraint, [0xC3])
    assert END not in allowed(constraint.mask())


def test_what_was_not_allowed_changes_nothing(toy: GrammarVocabulary) -> None:
    constraint = compiled(RegexFormat("ab"), toy).new_constraint()
    for token in (ord("b"), END, 299, 300, -1, 1 << 40):
        constraint.accept(token)
        assert allowed(constraint.mask()) == [ord("a")]
    assert feed(constraint, [ord("a"), ord("b")])
    constraint.accept(END)
    constraint.accept(ord("a"))
    assert allowed(constraint.mask()) == [END]


def test_sequences_of_one_format_do_not_meet(toy: GrammarVocabulary) -> None:
    format = compiled(RegexFormat("ab|cd"), toy)
    one, other = format.new_constraint(), format.new_constraint()
    assert feed(one, [ord("a")])
    assert allowed(other.mask()) == [ord("a"), ord("c")]
    assert allowed(one.mask()) == [ord("b")]


HARD = LarkFormat('start: x*\nx: "a" | "a" x | x "a" | x x | "(" x ")"')
"""Hugely ambiguous: the parser reaches its limit for one step."""


def test_where_the_parser_gives_up_only_an_end_is_allowed(toy: GrammarVocabulary) -> None:
    complete, open_bracket = (compiled(HARD, toy).new_constraint() for _ in range(2))
    for constraint, first in ((complete, ord("a")), (open_bracket, ord("("))):
        constraint.mask()
        constraint.accept(first)
        constraint._matcher.consume_token(0)  # a byte that the grammar does not know: the matcher is broken from here on
        constraint._fresh = False
    assert allowed(complete.mask()) == [END]
    assert allowed(open_bracket.mask()) == []


@pytest.mark.parametrize(
    "choices", [("a", "ab", "abc"), ("é", '"', "\\", "\n", "\x01", "/", "東京 ", "a|b"), ("", "x"), ("\x7f", "\u2028")]
)
def test_a_choice_is_one_of_its_texts(choices: tuple[str, ...], toy: GrammarVocabulary) -> None:
    assert all(accepts(ChoiceFormat(choices), choice, toy) for choice in choices)
    assert not accepts(ChoiceFormat(choices), "q", toy)
    assert not accepts(ChoiceFormat(choices), choices[-1] + "z", toy)


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (RegexFormat("^a/b$"), ["a/b"], ["a/b\n", "a"]),
        (RegexFormat("(yes|no)\n?"), ["yes", "no\n"], ["yesno"]),
        (RegexFormat(""), [""], ["a"]),
        (GbnfFormat('root ::= "a" | b\nb ::= [0-9]+ "x"?'), ["a", "12", "3x"], ["x", "ax"]),
        (GbnfFormat('root ::= "\\u00e9" [α-ω]{2}'), ["éαβ"], ["éα", "e"]),
        (LarkFormat('start: INT ("," INT)*\n%import common.INT'), ["1", "1,22"], ["1,", "a"]),
        (LarkFormat('%llguidance {}\nstart: "a" start "b" | "c"'), ["c", "aacbb"], ["aacb"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_patterns_and_grammars_match_the_whole_text(
    format: Any, good: list[str], bad: list[str], toy: GrammarVocabulary
) -> None:
    assert all(accepts(format, text, toy) for text in good)
    assert not any(accepts(format, text, toy) for text in bad)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ("start: <[5,9]>", ["\x05", "\x09"], ["a"]),
        ("start: <[^5]>", ["a"], ["\x05"]),
        ("start: <[*]>", ["a"], []),
        ('start: "\\u00e9\\n\\"\\\\"', ['é\n"\\'], ["é"]),
        ('start: "ab"i', ["AB", "aB"], ["x"]),
        ('start: x "c"\nx[suffix="b"]: /.*/', ["aabc", "bc"], ["abbc"]),
        ('start: x "c"\nx[max_tokens=2]: /a*/', ["aac", "ac"], ["aaac"]),
        ('start: x "b"\nx[lazy]: /a+/', ["ab"], ["aab"]),
        ("start: A\nA: /a+/ & /.{3}/", ["aaa"], ["aa"]),
        ("start: A\nA: ~/a+/ & /[ab]+/", ["b", "ab"], ["aa"]),
        ('start: %regex {"substring_words": "a b c"}', ["a b", "b"], ["a c"]),
        ('start: "a" "b"\n%ignore / +/', ["a b", "ab"], ["a-b"]),
    ],
)
def test_the_spellings_that_are_documented_work(grammar: str, good: list[str], bad: list[str], toy: GrammarVocabulary) -> None:
    assert all(accepts(LarkFormat(grammar), text, toy) for text in good)
    assert not any(accepts(LarkFormat(grammar), text, toy) for text in bad)


def test_a_schema_in_a_grammar_is_written_in_the_same_style(toy: GrammarVocabulary, toy_text: ToyText) -> None:
    rule = json_schema_rule({"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"], "title": "T"})
    format = LarkFormat(f'start: "<call>" {rule} "</call>" tail?\ntail: "!"')
    assert accepts(format, '<call>{"é": 1, "b": 2}</call>', toy)
    assert not accepts(format, '<call>{"é":1}</call>', toy)
    assert walk(compiled(format, toy).new_constraint(), toy_text, 1).startswith(b"<call>")


def test_a_vocabulary_is_made_once_and_goes_with_its_layer() -> None:
    layer = ToyText()
    vocabulary = weakref.ref(grammar_vocabulary(layer, 257))
    assert grammar_vocabulary(layer, 257) is vocabulary()
    compile_constraint(JsonObjectFormat(), layer, 257)
    del layer
    gc.collect()
    assert vocabulary() is None


class Endless(ToyText):
    end_tokens = frozenset()


def test_a_model_that_cannot_end_a_text_is_held_to_no_format() -> None:
    with pytest.raises(InvalidRequest) as caught:
        compile_constraint(JsonObjectFormat(), Endless(), 257)
    assert caught.value.code == "unsupported_by_model"
