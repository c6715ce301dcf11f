"""Answers are read the same however their text is cut, and what is no call stays text."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.text_formats.families import Answer, numbered, put_together, read
from tripower.backends.text.formats.call_text import HELD_CHARACTERS_MAX
from tripower.backends.text.formats.family import GEMMA, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, THINK, ToolFormat
from tripower.backends.text.formats.reader import MarkedReader, new_call_id
from tripower.runtime.engine.answer import ContentDelta, ReasoningDelta, ToolCallDelta

NAMES = ("add", "clock")


def reader(form: ToolFormat | None = HERMES, **options: Any) -> MarkedReader:
    return MarkedReader(tools=form, names=NAMES, thought=THINK, new_id=numbered(), **options)


def call(name: str = "add", arguments: str = '{"a": 1}', key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


ONE = f"<tool_call>\n{call()}\n</tool_call>"
TRICKY = '{"a": "</tool_call> } ] \\" \\u00e9 \\\\", "b": {"c": [1, {"d": null}, -1.5e3, "é"]}}'
RAW = "<tool_call>\nnot json</tool_call>"
CASES: dict[str, tuple[ToolFormat, str, str, list[str]]] = {
    "content alone": (HERMES, " plain text \n", " plain text \n", []),
    "one call": (HERMES, ONE, "", ['{"a": 1}']),
    "content, call": (HERMES, f"Let me see.\n\n{ONE}\n", "Let me see.", ['{"a": 1}']),
    "two calls": (HERMES, f"{ONE}\n{ONE}", "", ['{"a": 1}'] * 2),
    "call, content": (HERMES, f"{ONE}\n\nDone. ", "Done. ", ['{"a": 1}']),
    "marks and escapes in strings": (HERMES, f"<tool_call>{call(arguments=TRICKY)}</tool_call>", "", [TRICKY]),
    "other order of keys": (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", ['{"a": 1}']),
    "no arguments": (HERMES, '<tool_call>{"name": "clock"}</tool_call>', "", ["{}"]),
    "null arguments": (HERMES, f"<tool_call>{call(arguments='null')}</tool_call>", "", ["{}"]),
    "arguments as a string": (HERMES, f"<tool_call>{call(arguments=json.dumps(TRICKY))}</tool_call>", "", [TRICKY]),
    "further keys": (HERMES, '<tool_call>{"id": [1], "name": "add", "arguments": {}, "x": 1}</tool_call>', "", ["{}"]),
    "no end marker": (HERMES, f"<tool_call>{call()}", "", ['{"a": 1}']),
    "no JSON": (HERMES, f"a {RAW} b", f"a {RAW} b", []),
    "no call": (HERMES, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    "no such tool": (HERMES, f"<tool_call>{call('rm')}</tool_call>", f"<tool_call>{call('rm')}</tool_call>", []),
    "a call behind no call": (HERMES, f"<tool_call> <tool_call>{call()}</tool_call>", "<tool_call>", ['{"a": 1}']),
    "half a marker": (HERMES, "a <tool_c", "a <tool_c", []),
    "only a marker": (HERMES, "a <tool_call>\n", "a <tool_call>\n", []),
    "llama": (LLAMA, call(key="parameters"), "", ['{"a": 1}']),
    "llama, chained": (LLAMA, f"{call()}; {call('clock', '{}')}", "", ['{"a": 1}', "{}"]),
    "llama, tagged": (LLAMA, f"Hm. <|python_tag|>{call()}", "Hm.", ['{"a": 1}']),
    "llama, code": (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "llama, JSON": (LLAMA, ' {"a": {"name": "add"}}', ' {"a": {"name": "add"}}', []),
    "llama, JSON later": (LLAMA, f"It is {call()}", f"It is {call()}", []),
    "mistral": (MISTRAL, f"[TOOL_CALLS] [{call()} , {call('clock', '{}')}]", "", ['{"a": 1}', "{}"]),
    "mistral, no list": (MISTRAL, f"[TOOL_CALLS]{call()}", "", ['{"a": 1}']),
    "mistral, no call": (MISTRAL, "[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", []),
    "named": (
        MISTRAL_NAMED,
        'Hm. [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]clock[CALL_ID]x1[ARGS] {}',
        "Hm.",
        ['{"a": 1}', "{}"],
    ),
    "named, unknown": (MISTRAL_NAMED, "[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]rm[ARGS]{}", []),
    "named, no object": (MISTRAL_NAMED, "[TOOL_CALLS]add[ARGS] [1]", "[TOOL_CALLS]add[ARGS] [1]", []),
    "named, no marker": (MISTRAL_NAMED, f"[TOOL_CALLS]{'add' * 99}", f"[TOOL_CALLS]{'add' * 99}", []),
    "gemma": (GEMMA, f"```tool_code\n{call()}\n```", "", ['{"a": 1}']),
    "gemma, code": (GEMMA, "```tool_code\nadd(a=1)\n```", "```tool_code\nadd(a=1)\n```", []),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_an_answer_is_taken_apart(name: str, step: int) -> None:
    form, text, content, arguments = CASES[name]
    target = reader(form)
    answer = read(target, *(text[at : at + step] for at in range(0, len(text), step)))
    assert (answer.content, [each[2] for each in answer.calls]) == (content, arguments)
    assert target.complete_calls == len(arguments)
    assert all(isinstance(json.loads(each), dict) for each in arguments)


PARTS = [text for _, text, _, _ in CASES.values()]
PARTS += [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "\n",
    "  ",
    "{",
    "}",
    '"',
    "\\",
    "x",
    '{"name": "add"',
    "[",
    ",",
]


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.sampled_from(PARTS), max_size=5).map("".join),
    st.lists(st.integers(0, 400), max_size=12),
    st.sampled_from([HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, GEMMA]),
    st.booleans(),
    st.booleans(),
)
def test_how_the_text_is_cut_makes_no_difference(
    text: str, cuts: list[int], form: ToolFormat, thinking: bool, parallel: bool
) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    whole, parts = (reader(form, thinking=thinking, parallel=parallel) for _ in range(2))
    assert read(whole, text) == read(parts, *pieces)
    assert whole.complete_calls == parts.complete_calls


def test_each_call_has_its_index_and_tells_its_name_once() -> None:  # BB-031
    target = reader()
    told = [delta for piece in re.findall(r"(?s).{1,4}", f"{ONE}\n{ONE}") for delta in target.push(piece)]
    begun = [delta for delta in told if isinstance(delta, ToolCallDelta) and delta.id is not None]
    assert begun == [ToolCallDelta(0, "id0", "add"), ToolCallDelta(1, "id1", "add")]
    assert [text for _, _, text in put_together(told).calls] == ['{"a": 1}', '{"a": 1}']


def test_arguments_are_told_as_they_come() -> None:
    target = reader()
    target.push('<tool_call>\n{"name": "add", "arguments": ')
    assert target.push('{"a"') == [ToolCallDelta(0, "id0", "add"), ToolCallDelta(0, arguments='{"a"')]
    assert target.push(": 1") == [ToolCallDelta(0, arguments=": 1")]
    assert target.push("}") == [ToolCallDelta(0, arguments="}")]
    assert target.push("}") == [] and target.complete_calls == 1


def test_content_is_told_as_soon_as_it_is_certain() -> None:
    target = reader()
    assert target.push("a <") == [ContentDelta("a")]
    assert target.push("b") == [ContentDelta(" <b")]


def test_a_call_that_is_cut_off_does_not_count() -> None:  # BB-017
    target = reader()
    answer = read(target, ONE + '<tool_call>{"name": "add", "arguments": {"a": "hal')
    assert [text for _, _, text in answer.calls] == ['{"a": 1}', '{"a": "hal']
    assert target.complete_calls == 1 and answer.content == ""


@pytest.mark.parametrize("bad", ['{"a": nope}', '{"a": 01}', '{"a" 1}', "{a: 1}", '{"a": "\n"}', '{"a": "\\x"}', '{"a": 1,}'])
def test_arguments_that_are_no_json_end_their_call_and_the_rest_is_content(bad: str) -> None:
    target = reader()
    answer = read(target, f'<tool_call>{{"name": "add", "arguments": {bad}}}</tool_call> and {ONE}')
    assert target.complete_calls == 1
    assert [name for _, name, _ in answer.calls] == ["add", "add"] and answer.calls[1][2] == '{"a": 1}'
    assert answer.calls[0][2] + answer.content == f"{bad}}}</tool_call> and"


def test_one_call_at_most_where_calls_may_not_be_parallel() -> None:
    target = reader(parallel=False)
    answer = read(target, f"{ONE}\n{ONE}")
    assert len(answer.calls) == 1 and answer.content == ONE


THOUGHTS = {
    "opened by the answer": (False, "\n<think>\nhm </think>\n\nYes. ", Answer("Yes. ", "hm", [], "rc")),
    "opened by the prompt": (True, "\nhm\n</think>\n\nYes.", Answer("Yes.", "hm", [], "rc")),
    "none": (False, "Yes, <think> is a tag.", Answer("Yes, <think> is a tag.", "", [], "c")),
    "cut": (True, "hm </thi", Answer("", "hm </thi", [], "r")),
    "empty": (False, "<think>\n\n</think>\n\nYes.", Answer("Yes.", "", [], "c")),
    "a call in it": (True, f"{ONE}</think>{ONE}", Answer("", ONE, [("id0", "add", '{"a": 1}')], "rt")),
    "again": (True, "a</think><think>b</think>", Answer("<think>b</think>", "a", [], "rc")),
}


@pytest.mark.parametrize("name", THOUGHTS)
@pytest.mark.parametrize("step", [1, 1000])
def test_reasoning_is_split_off(name: str, step: int) -> None:
    thinking, text, expected = THOUGHTS[name]
    assert read(reader(thinking=thinking), *(text[at : at + step] for at in range(0, len(text), step))) == expected


def test_a_bare_call_follows_reasoning() -> None:
    answer = read(reader(LLAMA), f"<think>hm</think>\n{call()}")
    assert (answer.reasoning, answer.order) == ("hm", "rt")


def test_reasoning_is_told_as_it_comes() -> None:
    target = reader(thinking=True)
    assert target.push("first ") == [ReasoningDelta("first")]
    assert target.push("second") == [ReasoningDelta(" second")]


HOSTILE = {
    "markers": "<tool_call>" * 4000,
    "openings": '<tool_call>{"' * 4000,
    "names": '<tool_call>{"name":"' * 4000,
    "a name without end": '<tool_call>{"name": "' + "x" * (HELD_CHARACTERS_MAX + 10_000),
    "depth": '<tool_call>{"name": "add", "arguments": ' + '{"a":' * 5000,
    "space": "<tool_call>" + " " * 40_000,
    "space in content": "x" + " \n" * 20_000,
    "lists": "[TOOL_CALLS][" * 4000,
    "named": "[TOOL_CALLS]add" * 4000,
    "angles": "<" * 40_000,
    "digits": '<tool_call>{"name": "add", "arguments": {"a": ' + "1" * 40_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA], ids=lambda form: form.name)
def test_hostile_text_costs_a_bounded_number_of_turns_and_stays_what_it_is(name: str, form: ToolFormat) -> None:
    text = HOSTILE[name]
    target = reader(form)
    turns = 0
    state = target._give_up

    def counting(rest: str) -> str:
        nonlocal turns
        turns += 1
        return state(rest)

    target._give_up = counting  # type: ignore[method-assign]
    answer = read(target, text)
    assert turns <= len(text) / len(form.begin) + 2
    told = "".join(each[2] for each in answer.calls) + answer.content
    assert text.endswith(told) and (answer.calls or told == text)
    assert target.complete_calls == 0


def test_ids_cannot_be_guessed() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100 and all(re.fullmatch(r"call_[0-9a-f]{24}", id) for id in ids)
