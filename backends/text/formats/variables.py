"""A conversation and its options as the variables that chat templates expect, the way the model hubs give them.

Nobody's text may become control tokens, so every string in here goes through `LiteralText.mark`, keys of JSON objects too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tripower.backends.text.formats.family import ToolFormat
from tripower.backends.text.formats.preamble import RESULT_ROLES, tool_object
from tripower.runtime.engine.contract import ChatMessage, ChatOptions, ToolCall, ToolDefinition
from tripower.runtime.kernel.errors import InvalidRequest

DEPTH_MAX = 64
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
DEVELOPER = "developer"
"""A role that most templates do not know: they get it as `system`, which it has taken the place of."""
OWN_NAMES = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "strftime_now", "raise_exception",
        "namespace", "range", "bos_token", "eos_token", "unk_token", "pad_token",
    }
)  # fmt: skip
"""Variables of ours: a caller's argument of that name is refused."""

Mark = Callable[[str], str]


def check_options(options: ChatOptions) -> None:
    """Refuse template arguments that would shadow our variables, and JSON that is nested too deeply."""
    shadowed = sorted(OWN_NAMES.intersection(options.arguments))
    if shadowed:
        raise InvalidRequest(
            f"chat_template_kwargs may not set {', '.join(shadowed)}: the server gives the template its own",
            param=f"chat_template_kwargs.{shadowed[0]}",
        )
    argument_variables(options.arguments, str)
    tool_variables(options.tools, str)


def texts_of(messages: Sequence[ChatMessage], options: ChatOptions) -> Iterator[str]:
    """Every text that the caller has any part in."""
    for message in messages:
        yield from (message.role, message.content, message.name or "", message.tool_call_id or "", message.reasoning or "")
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
    for tool in options.tools:
        yield json.dumps(tool_object(tool), ensure_ascii=False)
    yield json.dumps(dict(options.arguments), ensure_ascii=False, default=str)
    # JSON in arguments may hold escapes of characters that its text does not show
    yield from (_unescaped(call.arguments) for message in messages for call in message.tool_calls)


def message_variables(
    messages: Sequence[ChatMessage], mark: Mark, form: ToolFormat, *, developer: str, param: str = "messages"
) -> list[dict[str, Any]]:
    """The messages for a template that knows `developer` or, in its place, `system`."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    found = []
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequest(f"the role {message.role[:40]!r} is none of {', '.join(sorted(ROLES))}", param=param)
        role = developer if message.role == DEVELOPER else message.role
        variables: dict[str, Any] = {"role": role, "content": mark(message.content)}
        name = message.name
        if name is None and message.role in RESULT_ROLES:
            name = names.get(message.tool_call_id or "")
        if name is not None:
            variables["name"] = mark(name)
        if message.tool_call_id is not None:
            variables["tool_call_id"] = mark(call_id(message.tool_call_id, form))
        if message.reasoning is not None:
            variables["reasoning_content"] = variables["reasoning"] = mark(message.reasoning)
        if message.tool_calls:
            where = f"{param}[{index}].tool_calls"
            variables["tool_calls"] = [
                _call(call, mark, form, f"{where}[{each}]") for each, call in enumerate(message.tool_calls)
            ]
        found.append(variables)
    return found


def tool_variables(tools: Sequence[ToolDefinition], mark: Mark) -> list[Any]:
    """The tools as a template expects them."""
    return [marked(tool_object(tool), mark, f"tools[{index}]") for index, tool in enumerate(tools)]


def argument_variables(arguments: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    """The caller's own variables. Their names are the template's to look up, so they stay as they are."""
    return {name: marked(value, mark, f"chat_template_kwargs.{name}") for name, value in arguments.items()}


def call_id(given: str, form: ToolFormat) -> str:
    """The id as the template takes it: some demand a certain length."""
    if not form.id_length or (len(given) == form.id_length and given.isascii() and given.isalnum()):
        return given
    return hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()[: form.id_length]


def marked(value: Any, mark: Mark, param: str, depth: int = 0) -> Any:
    """JSON data with every string in it marked. Raises `InvalidRequest` where it is nested too deeply."""
    if depth > DEPTH_MAX:
        raise InvalidRequest(f"{param} is nested deeper than {DEPTH_MAX}", param=param)
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {mark(str(key)): marked(item, mark, param, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(item, mark, param, depth + 1) for item in value]
    return value


def _call(call: ToolCall, mark: Mark, form: ToolFormat, param: str) -> dict[str, Any]:
    """A call with its arguments as a mapping. Text that is no JSON object (cut off, say) stays the text that it is."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = call.arguments
    function = {"name": mark(call.name), "arguments": marked(arguments, mark, param)}
    return {"id": mark(call_id(call.id, form)), "type": "function", "function": function}


def _unescaped(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
