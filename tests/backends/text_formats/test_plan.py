"""What a choice of tools and a caller's format do to an answer: who reads it, what it is held to, which tokens are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backends.conftest import load_engine_now
from tests.backends.text_formats import families
from tests.backends.text_formats.families import CLOCK, HERMES, LLAMA, PLAIN, R1, TOOLS, WEATHER, layer_with, read
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.grammar import compile_constraint
from tripower.backends.text.formats.family import thought_format, tool_format
from tripower.backends.text.layer import GgufTextLayer
from tripower.runtime.engine.answer import AnswerDelta, PlainReader, ToolChoice
from tripower.runtime.engine.constraint import (
    ChoiceFormat,
    GbnfFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    LarkFormat,
    OutputFormat,
    RegexFormat,
)
from tripower.runtime.engine.contract import PLAIN_CHAT, ChatMessage, ChatOptions, StepEngine, StepRow, ToolDefinition
from tripower.runtime.engine.sampling_parameters import SamplingParameters
from tripower.runtime.kernel.errors import InvalidRequest

WITH_TOOLS = ChatOptions(tools=TOOLS)
MUST = ToolChoice(mode="required")
CLOCK_CALL = '{"name": "clock", "arguments": {}}'
WEATHER_CALL = '{"name": "get_weather", "arguments": {"city": "Ulm"}}'


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GgufTextLayer:
    with open_gguf(smollm2_path) as file:
        return GgufTextLayer(file)


def size(layer: GgufTextLayer) -> int:
    return len(layer.tokenizer.vocabulary)


def accepts(layer: GgufTextLayer, format: OutputFormat | None, text: str) -> bool:
    """Whether the answer may be this text and end there; its control tokens are recognised."""
    assert format is not None
    constraint = compile_constraint(format, layer, size(layer))
    for token in [*layer.tokenize(text, add_special=False, parse_special=True), min(layer.end_tokens)]:
        if not constraint.mask()[token // 32] >> (token % 32) & 1:
            return False
        constraint.accept(token)
    return True


FAMILIES = {
    "PLAIN": "generic", "HERMES": "hermes", "QWEN3": "hermes", "R1": "generic", "LLAMA": "llama", "MISTRAL": "mistral",
    "MISTRAL_NAMED": "mistral-named",
    "GEMMA": "gemma", "NO_SYSTEM": "generic", "XML_CALLS": "generic",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_shows_its_family(name: str) -> None:
    template = getattr(families, name)
    assert tool_format(template).name == FAMILIES[name]
    assert (thought_format(template) is not None) == (name in ("QWEN3", "R1"))


def test_without_tools_and_reasoning_an_answer_is_content(smollm2: GgufTextLayer) -> None:
    asked = JsonObjectFormat()
    plan = smollm2.plan_answer(asked=asked)
    assert (plan.new_reader, plan.format, plan.visible) == (PlainReader, asked, frozenset())
    assert smollm2.plan_answer(WITH_TOOLS, ToolChoice(mode="none")).new_reader is PlainReader


@pytest.mark.parametrize("name", FAMILIES)
def test_what_an_enforced_answer_holds_is_what_its_reader_finds(name: str, tmp_path: Path) -> None:
    layer = layer_with(tmp_path, getattr(families, name), control=("[TOOL_CALLS]",))
    layer.new_call_id = families.numbered()
    plan = layer.plan_answer(WITH_TOOLS, MUST)
    form = tool_format(getattr(families, name))
    thought = "hm</think>\n\n" if name == "R1" else ""
    call = 'get_weather[ARGS]{"city": "Ulm"}' if form.named else WEATHER_CALL.replace("arguments", form.arguments)
    text = thought + ("" if form.bare else form.begin) + form.before + call + form.after + form.end
    assert accepts(layer, plan.format, text)
    assert read(plan.new_reader(), text).calls == [("id0", "get_weather", '{"city": "Ulm"}')]
    for wrong in ("Hello!", text.replace("Ulm", '", "x": "'), text.replace("city", "town"), text.replace("get_weather", "rm")):
        assert not accepts(layer, plan.format, wrong)


CHOICES = {
    "required": (MUST, True, True, True),
    "one at a time": (ToolChoice(mode="required", parallel=False), True, True, False),
    "named": (ToolChoice(mode="required", name="clock"), False, True, True),
    "named alone": (ToolChoice(name="clock", parallel=False), False, True, False),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_forced_choice_is_forced(name: str, smollm2: GgufTextLayer) -> None:  # BB-032
    choice, weather, clock, two = CHOICES[name]
    format = smollm2.plan_answer(WITH_TOOLS, choice).format
    written = "<tool_call>\n{}\n</tool_call>".format
    assert accepts(smollm2, format, written(WEATHER_CALL)) == weather
    assert accepts(smollm2, format, written(CLOCK_CALL)) == clock
    assert accepts(smollm2, format, f"{written(CLOCK_CALL)}\n{written(CLOCK_CALL)}") == two
    assert not accepts(smollm2, format, "Hello! How can I help you?")
    assert not accepts(smollm2, format, "")


@pytest.mark.long
def test_smollm2_calls_a_tool_when_it_must_and_says_hello_else(smollm2: GgufTextLayer, smollm2_path: Path) -> None:  # BB-032
    engine = load_engine_now(smollm2_path, context=512)
    try:
        forced = read_greedy(engine, smollm2, MUST)
        assert [(name, json.loads(text).keys()) for _, name, text in forced.calls] == [("get_weather", {"city"})]
        assert forced.content == ""
        free = read_greedy(engine, smollm2, ToolChoice())
        assert free.content and not free.calls
    finally:
        engine.close()


def read_greedy(engine: StepEngine, layer: GgufTextLayer, choice: ToolChoice) -> families.Answer:
    """What the model answers to a greeting, in 60 tokens at most."""
    plan = layer.plan_answer(WITH_TOOLS, choice)
    constraint = compile_constraint(plan.format, layer, size(layer)) if plan.format else None
    told: list[AnswerDelta] = []
    reader = plan.new_reader()
    rows = tuple(layer.render_chat([ChatMessage("user", "hello")], WITH_TOOLS))
    engine.open_sequence(1)
    for index in range(60):
        mask = constraint.mask() if constraint else None
        row = StepRow(1, engine.length(1), rows, True, index, SamplingParameters(temperature=0), mask=mask)
        [token] = engine.step([row])
        if token in layer.end_tokens:
            break
        if constraint:
            constraint.accept(token)
        told += reader.push(layer.piece(token).decode())
        rows = (token,)
    engine.close_sequence(1)
    return families.put_together([*told, *reader.finish()])


def test_calls_of_an_enforced_answer_end(smollm2: GgufTextLayer) -> None:
    format = smollm2.plan_answer(WITH_TOOLS, MUST).format
    one = f"<tool_call>\n{CLOCK_CALL}\n</tool_call>"
    assert accepts(smollm2, format, "\n".join([one] * 16)) and not accepts(smollm2, format, "\n".join([one] * 17))


def test_an_unforced_answer_is_free(smollm2: GgufTextLayer) -> None:
    plan = smollm2.plan_answer(WITH_TOOLS)
    assert plan.format is None
    assert len(read(plan.new_reader(), f"<tool_call>{CLOCK_CALL}</tool_call>").calls) == 1


def test_one_call_at_most_is_read_where_calls_are_not_parallel(smollm2: GgufTextLayer) -> None:
    reader = smollm2.plan_answer(WITH_TOOLS, ToolChoice(parallel=False)).new_reader()
    assert len(read(reader, f"<tool_call>{CLOCK_CALL}</tool_call>" * 2).calls) == 1


REFUSED: dict[str, tuple[ChatOptions, ToolChoice, str]] = {
    "no tools": (PLAIN_CHAT, MUST, "tool_choice"),
    "unknown name": (WITH_TOOLS, ToolChoice(mode="required", name="rm"), "tool_choice.function.name"),
    "name without tools": (PLAIN_CHAT, ToolChoice(name="rm"), "tool_choice.function.name"),
    "bad name": (ChatOptions(tools=(CLOCK, ToolDefinition("a b"))), ToolChoice(), "tools[1].function.name"),
    "bad name, not called": (ChatOptions(tools=(ToolDefinition(""),)), ToolChoice(mode="none"), "tools[0].function.name"),
    "long name": (ChatOptions(tools=(ToolDefinition("a" * 65),)), ToolChoice(), "tools[0].function.name"),
    "same name": (ChatOptions(tools=(CLOCK, CLOCK)), ToolChoice(), "tools[1].function.name"),
    "too many": (ChatOptions(tools=tuple(ToolDefinition(f"f{each}") for each in range(129))), ToolChoice(), "tools"),
    "no object": (
        ChatOptions(tools=(ToolDefinition("f", None, {"type": "string"}),)), MUST, "tools[0].function.parameters.type",
    ),
    "not enforceable": (
        ChatOptions(tools=(CLOCK, ToolDefinition("f", None, {"not": {}}))), MUST, "tools[1].function.parameters/not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_tool_or_a_choice_that_cannot_be_is_a_bad_request(name: str, smollm2: GgufTextLayer) -> None:  # BB-025
    options, choice, param = REFUSED[name]
    with pytest.raises(InvalidRequest) as refusal:
        smollm2.plan_answer(options, choice)
    assert (refusal.value.param, refusal.value.status) == (param, 400)


OPENINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "by the prompt": (R1, {}, "hm"),
    "by the answer": (families.QWEN3, {}, ""),
    "switched off": (families.QWEN3, {"enable_thinking": False}, ""),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_the_prompt_tells_whether_an_answer_begins_with_reasoning(name: str, tmp_path: Path) -> None:
    template, arguments, reasoning = OPENINGS[name]
    plan = layer_with(tmp_path, template).plan_answer(ChatOptions(arguments=arguments))
    answer = read(plan.new_reader(), "hm</think>yes")
    assert (answer.reasoning, answer.content) == (reasoning, "yes" if reasoning else "hm</think>yes")
    answer = read(plan.new_reader(), "<think>hm</think>yes")
    assert answer.content == ("<think>hm</think>yes" if name == "switched off" else "yes")


def test_markers_that_are_control_tokens_are_shown_and_enforced_as_tokens(tmp_path: Path) -> None:
    markers = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    layer = layer_with(tmp_path, HERMES, control=markers)
    ids = {text: layer.tokenizer.vocabulary.ids[text] for text in markers}
    plan = layer.plan_answer(WITH_TOOLS, MUST)
    assert plan.visible == set(ids.values())
    call = f"<tool_call>\n{CLOCK_CALL}\n</tool_call>"
    assert accepts(layer, plan.format, call) and accepts(layer, plan.format, f"<think>so {CLOCK_CALL}</think>\n{call}")
    assert not accepts(layer, plan.format, f"<think>so</think>{CLOCK_CALL}")
    assert layer.plan_answer().visible == {ids["<think>"], ids["</think>"]}
    assert layer.plan_answer(ChatOptions(continue_final_message=True)).visible == {ids["<think>"], ids["</think>"]}


ASKED: dict[str, tuple[OutputFormat, str, str]] = {
    "object": (JsonObjectFormat(), '{"a": 1}', "[1]"),
    "schema": (JsonSchemaFormat({"type": "integer"}), "12", "x"),
    "pattern": (RegexFormat(r"a/b\/c[/]\d"), "a/b/c/7", "a/b"),
    "choice": (ChoiceFormat(("red", 'a "b"')), 'a "b"', "blue"),
    "lark": (LarkFormat('start: thing\nthing: "x{" | "}y"'), "}y", "y"),
    "gbnf": (GbnfFormat('root ::= "a" [0-9]+'), "a12", "b"),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_callers_format_holds_behind_the_reasoning(name: str, tmp_path: Path) -> None:
    asked, good, bad = ASKED[name]
    opened, possible = layer_with(tmp_path, R1), layer_with(tmp_path, families.QWEN3)
    for layer, before in ((opened, "hm </thing></think>\n\n"), (possible, "<think>hm</think>"), (possible, "")):
        format = layer.plan_answer(asked=asked).format
        assert accepts(layer, format, before + good)
        assert not accepts(layer, format, before + bad)
    assert not accepts(opened, opened.plan_answer(asked=asked).format, good)


@pytest.mark.parametrize("name", ASKED)
def test_with_tools_an_answer_is_calls_or_the_callers_document(name: str, tmp_path: Path) -> None:
    asked, good, bad = ASKED[name]
    layer = layer_with(tmp_path, PLAIN)
    format = layer.plan_answer(WITH_TOOLS, asked=asked).format
    assert accepts(layer, format, good) and accepts(layer, format, f"<tool_call>\n{CLOCK_CALL}\n</tool_call>")
    assert not accepts(layer, format, bad) and not accepts(layer, format, "<tool_call>\n{}\n</tool_call>")
    assert layer.plan_answer(WITH_TOOLS, ToolChoice(mode="none"), asked).format == asked


@pytest.mark.parametrize("template", ["PLAIN", "HERMES", "MISTRAL", "MISTRAL_NAMED", "GEMMA"])
@pytest.mark.parametrize("control", [(), ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "```tool_code")])
def test_a_strict_tools_arguments_are_enforced_behind_the_marker(
    template: str, control: tuple[str, ...], tmp_path: Path
) -> None:
    layer = layer_with(tmp_path, getattr(families, template), control=control)
    form = tool_format(getattr(families, template))
    strict = ChatOptions(tools=(msgspec.structs.replace(WEATHER, strict=True), CLOCK))
    format = layer.plan_answer(strict).format
    written = 'get_weather[ARGS]{"city": "Ulm"}' if form.named else WEATHER_CALL
    call = form.begin + form.before + written + form.after + form.end
    for text in ("", "Hello { <tool", call, f"Let me see.\n{call}\nDone."):
        assert accepts(layer, format, text)
    assert not accepts(layer, format, call.replace("Ulm", '", "x": "'))
    assert not accepts(layer, format, f"Well: {form.begin}")
    twice = f"{call}\n{call}"
    assert accepts(layer, format, twice)
    assert not accepts(layer, layer.plan_answer(strict, ToolChoice(parallel=False)).format, twice)


def test_a_bare_format_leaves_strict_tools_to_the_model(tmp_path: Path) -> None:
    layer = layer_with(tmp_path, LLAMA)
    assert layer.plan_answer(ChatOptions(tools=(ToolDefinition("f", strict=True),))).format is None


def test_schemas_of_two_tools_keep_their_own_definitions(tmp_path: Path) -> None:
    def referring(name: str, kind: str) -> ToolDefinition:
        return ToolDefinition(
            name, None, {"properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"], "$defs": {"A": {"type": kind}}}
        )

    layer = layer_with(tmp_path, PLAIN)
    format = layer.plan_answer(ChatOptions(tools=(referring("f", "integer"), referring("g", "boolean"))), MUST).format

    def call(name: str, value: Any) -> str:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'a': value}})}\n</tool_call>"

    assert accepts(layer, format, call("f", 1)) and accepts(layer, format, call("g", True))
    assert not accepts(layer, format, call("f", True)) and not accepts(layer, format, call("g", 1))
