"""Short templates in the style of each family, and models of a few tokens that have them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.text.layer import GgufTextLayer
from tripower.bench.gguf_samples import byte_level_metadata, write_gguf
from tripower.runtime.engine.answer import AnswerDelta, AnswerReader, ContentDelta, ReasoningDelta, ToolCallDelta
from tripower.runtime.engine.contract import ToolDefinition

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

PLAIN = TURNS + PROMPT
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '' if loop.first and not m.content else '\n' }}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}" + PROMPT
)
QWEN3 = HERMES + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
R1 = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}"
)
LLAMA = (
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n{{ m.content }}"
    '{% for call in m.tool_calls or [] %}<|python_tag|>{"name": "{{ call.function.name }}", '
    '"parameters": {{ call.function.arguments | tojson }}}{% endfor %}<|eot_id|>{% endfor %}'
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% endfor %}]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_NAMED = MISTRAL.replace("[TOOL_CALLS][", "").replace(
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}{% endfor %}]',
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}",
)
GEMMA = (
    "{% set turns = messages %}{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% endif %}{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + PLAIN
XML_CALLS = HERMES + "{# <tool_call>\n<function=name>\n<parameter=key>value #}"

WEATHER = ToolDefinition(
    "get_weather",
    "Tells the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)
CLOCK = ToolDefinition("clock")
TOOLS = (WEATHER, CLOCK)


def layer_with(folder: Path, template: str, *, control: tuple[str, ...] = ()) -> GgufTextLayer:
    """A model of bytes whose vocabulary ends with these control tokens."""
    metadata: dict[str, Any] = byte_level_metadata(more={"tokenizer.chat_template": template})
    tokens, kinds = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.token_type"])
    metadata |= {"tokenizer.ggml.tokens": [*tokens, *control], "tokenizer.ggml.token_type": [*kinds, *([3] * len(control))]}
    path = folder / "model.gguf"
    path.write_bytes(write_gguf(metadata))
    with open_gguf(path) as file:
        return GgufTextLayer(file)


def numbered() -> Callable[[], str]:
    """Ids that tests can foresee."""
    numbers = itertools.count()
    return lambda: f"id{next(numbers)}"


class Answer(msgspec.Struct):
    """What a reader told, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = []
    order: str = ""
    """c, r or t for each part when it begins."""


def put_together(deltas: list[AnswerDelta]) -> Answer:
    answer = Answer()
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                answer.content += text
                answer.order += "" if answer.order.endswith("c") else "c"
            case ReasoningDelta(text):
                answer.reasoning += text
                answer.order += "" if answer.order.endswith("r") else "r"
            case ToolCallDelta(index, None, None, arguments):
                assert index == len(answer.calls) - 1
                id, name, before = answer.calls[index]
                answer.calls[index] = (id, name, before + arguments)
            case ToolCallDelta(index, id, name, arguments):
                assert id and name and index == len(answer.calls)
                answer.calls.append((id, name, arguments))
                answer.order += "t"
    return answer


def read(reader: AnswerReader, *pieces: str) -> Answer:
    """The answer that comes in these pieces."""
    deltas = [delta for piece in pieces for delta in reader.push(piece)]
    return put_together([*deltas, *reader.finish()])
