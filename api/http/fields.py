"""Fields that are not honoured: refused when they would matter, passed when they would not, named when nobody knows them.

Servers that reject every unknown field break clients; servers that drop them in silence get bug reports. So there are three cases:

1. A field that we know and cannot honour, with a value that would change the answer, is refused with its name and what would work.
2. The same field with a neutral value, or one that changes nothing about an answer, passes.
3. A field that asks for what is not done here but changes no answer (`store`, `prediction`), and one that nobody knows, is accepted and
   named, in the header `x-tripower-ignored` and in the log; a client that sends `x-tripower-strict: 1` gets a refusal instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tripower.runtime.kernel import InvalidRequest


class Unsupported(NamedTuple):
    """Values that ask for nothing, beside null, and what would work instead."""

    neutral: tuple[Any, ...]
    instead: str
    told: bool = False
    """Whether no value changes an answer, so that others than the neutral ones are accepted and named."""


_NO_SEARCH = "this server looks nothing up; offer it a tool that does"
_CONVERSATION = "send a conversation to /v1/chat/completions"
_ONE_CHOICE = "n answers are n answers, and none of them is thrown away"
_TEXT_ONLY = "this model reads and writes text only"
_NO_DRAFT = "speculation.mode is a setting of the server; leave it out: it changes no answer, only the speed"
_OTHER_SAMPLING = "use temperature, top_k, top_p, min_p and the penalties"
_PROMPT = "the chat template of the model file is used as it is; a prompt of your own goes to /v1/completions"

WITHOUT_EFFECT = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_retention", "service_tier"})

UNSUPPORTED: Mapping[str, Unsupported] = {
    "best_of": Unsupported((1,), _ONE_CHOICE),
    "use_beam_search": Unsupported((False,), _OTHER_SAMPLING),
    "length_penalty": Unsupported((1,), "it is for beam search, which is refused by its own name", told=True),
    "typical_p": Unsupported((1,), _OTHER_SAMPLING),
    "tfs_z": Unsupported((1,), _OTHER_SAMPLING),
    "mirostat": Unsupported((0,), _OTHER_SAMPLING),
    "xtc_probability": Unsupported((0,), _OTHER_SAMPLING),
    "dry_multiplier": Unsupported((0,), _OTHER_SAMPLING),
    "dynatemp_range": Unsupported((0,), _OTHER_SAMPLING),
    "allowed_token_ids": Unsupported(([],), "use logit_bias"),
    "bad_words": Unsupported(([],), "use logit_bias"),
    "skip_special_tokens": Unsupported((True,), "control tokens are never part of the answer"),
    "normalize": Unsupported((True,), "vectors always have unit length"),
    "truncate_prompt_tokens": Unsupported((), "shorten the prompt"),
    "web_search_options": Unsupported((), _NO_SEARCH),
    "tools": Unsupported(([],), _CONVERSATION),
    "tool_choice": Unsupported(("none", "auto"), _CONVERSATION),
    "parallel_tool_calls": Unsupported((True, False), _CONVERSATION),
    "functions": Unsupported(([],), _CONVERSATION),
    "function_call": Unsupported(("none", "auto"), _CONVERSATION),
    "top_logprobs": Unsupported((0,), "use logprobs with a number"),
    "reasoning_effort": Unsupported(("none",), _CONVERSATION),
    "chat_template_kwargs": Unsupported(({},), _CONVERSATION),
    "add_generation_prompt": Unsupported((True,), _CONVERSATION),
    "continue_final_message": Unsupported((False,), _CONVERSATION),
    "echo": Unsupported((False,), "only /v1/completions repeats the prompt"),
    "suffix": Unsupported(("",), "text can only be continued at its end"),
    "modalities": Unsupported((["text"],), _TEXT_ONLY),
    "audio": Unsupported((), _TEXT_ONLY),
    "prediction": Unsupported((), _NO_DRAFT, told=True),
    "speculative.n_max": Unsupported((0,), _NO_DRAFT, told=True),
    "speculative.n_min": Unsupported((0,), _NO_DRAFT, told=True),
    "speculative.p_min": Unsupported((), _NO_DRAFT, told=True),
    "draft_model": Unsupported(("",), _NO_DRAFT, told=True),
    "verbosity": Unsupported(("medium",), "say in the prompt how long the answer should be"),
    "store": Unsupported((False,), "answers are not kept", told=True),
    "chat_template": Unsupported((), _PROMPT),
    "documents": Unsupported(([],), "put the documents into the prompt"),
}

NAMES_MAX = 100
"""Unknown fields of one request that are remembered; what is told of them are twenty and how many more."""

IN_MESSAGES: Mapping[str, Unsupported] = {
    "audio": Unsupported((), _TEXT_ONLY),
    "images": Unsupported(([],), _TEXT_ONLY),
    "refusal": Unsupported(("",), "give the text as content"),
}
IN_MESSAGES_KNOWN = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning", "annotations"}
)
"""Annotations say of an answer where it came from, and change nothing about the next one."""
IN_TOOLS = frozenset({"type", "function"})
IN_FUNCTIONS = frozenset({"name", "description", "parameters", "strict"})
IN_CALLS = frozenset({"id", "type", "function"})
IN_CALLED = frozenset({"name", "arguments"})


def review(plain: Mapping[str, Any], honoured: frozenset[str]) -> tuple[str, ...]:
    """Names of the unknown fields of a decoded request, in their order. Raises `InvalidRequest` for case 1."""
    return first_names(_all_unknown(plain, honoured))


def first_names(names: Iterable[str]) -> tuple[str, ...]:
    """The first `NAMES_MAX` different ones. All are looked at, since what looks for them refuses as well."""
    found: dict[str, None] = {}
    for name in names:
        if len(found) < NAMES_MAX:
            found[name] = None
    return tuple(found)


def _all_unknown(plain: Mapping[str, Any], honoured: frozenset[str]) -> Iterator[str]:
    yield from _unknown(plain, honoured | WITHOUT_EFFECT, UNSUPPORTED, "")
    options = plain.get("stream_options")
    if isinstance(options, dict):
        yield from _unknown(options, frozenset({"include_usage", "continuous_usage_stats"}), {}, "stream_options.")
    messages = plain.get("messages") if "messages" in honoured else None
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            yield from _unknown_in_message(index, message)
    if "tools" in honoured:
        yield from _unknown_with_function(plain.get("tools"), IN_TOOLS, IN_FUNCTIONS, "tools.")
        yield from _unknown_in_each(plain.get("functions"), IN_FUNCTIONS, "functions.")


def _unknown_in_message(index: int, message: Mapping[str, Any]) -> Iterator[str]:
    for name in _unknown(message, IN_MESSAGES_KNOWN, IN_MESSAGES, f"messages[{index}]."):
        yield "messages." + name.partition(".")[2]
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "text":
            yield from _unknown(part, frozenset({"type", "text"}), {}, "messages.content.")
    yield from _unknown_with_function(message.get("tool_calls"), IN_CALLS, IN_CALLED, "messages.tool_calls.")
    yield from _unknown_in_each([message.get("function_call")], IN_CALLED, "messages.function_call.")


def _unknown_with_function(plain: Any, known: frozenset[str], inside: frozenset[str], path: str) -> Iterator[str]:
    """Of a list of objects with a `function` each."""
    yield from _unknown_in_each(plain, known, path)
    functions = [each.get("function") for each in plain if isinstance(each, dict)] if isinstance(plain, list) else None
    yield from _unknown_in_each(functions, inside, f"{path}function.")


def _unknown_in_each(plain: Any, known: frozenset[str], path: str) -> Iterator[str]:
    for each in plain if isinstance(plain, list) else ():
        if isinstance(each, dict):
            yield from _unknown(each, known, {}, path)


def _unknown(
    fields: Mapping[str, Any], known: frozenset[str], unsupported: Mapping[str, Unsupported], path: str
) -> Iterator[str]:
    for name, value in fields.items():
        if name in known:
            continue
        rule = unsupported.get(name)
        if rule is None or (asks_for_more(rule, value) and rule.told):
            yield path + name
        elif asks_for_more(rule, value):
            raise refusal(path + name, rule)


def asks_for_more(rule: Unsupported, value: Any) -> bool:
    """Whether a value is none of the neutral ones."""
    return value is not None and not any(_same(value, neutral) for neutral in rule.neutral)


def refusal(path: str, rule: Unsupported) -> InvalidRequest:
    """Of a field that cannot be honoured, with what would work."""
    how = " with this value" if rule.neutral else ""
    return InvalidRequest(f"{path} is not supported{how}: {rule.instead}", code="unsupported_parameter", param=path)


def _same(value: Any, neutral: Any) -> bool:
    """JSON equality: true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def refuse_unknown(names: tuple[str, ...]) -> InvalidRequest:
    """What a client hears that asked to be told."""
    listed = ", ".join(name[:64] for name in names[:20]) + (", …" if len(names) > 20 else "")
    return InvalidRequest(f"without effect here, so leave out: {listed}", code="unsupported_parameter", param=names[0])
