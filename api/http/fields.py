"""Fields that are not honoured: refused when they would matter, passed when they would not, named when nobody knows them.

Servers that reject every unknown field break clients; servers that drop them in silence get bug reports. So there are three cases:

1. A field that we know and cannot honour, with a value that would change the answer, is refused with its name and what would work.
2. The same field with a neutral value, or one that changes nothing about an answer, passes.
3. A field that nobody knows is accepted and named, in the header `x-tripower-ignored` and in the log; a client that sends
   `x-tripower-strict: 1` gets a refusal instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tripower.runtime.kernel import InvalidRequest


class Unsupported(NamedTuple):
    """Values that ask for nothing, beside null, and what would work instead."""

    neutral: tuple[Any, ...]
    instead: str


_NO_TOOLS = "this server calls no tools yet; describe them in the prompt"
_NO_FORMAT = "this server cannot force a format yet; ask for it in the prompt"
_NO_LOGPROBS = "this server returns no log probabilities yet"
_TEXT_ONLY = "this model reads and writes text only"
_LENGTH = "use max_completion_tokens"
_OTHER_SAMPLING = "use temperature, top_k, top_p, min_p and the penalties"
_PROMPT = "the chat template of the model file is used as it is; a prompt of your own goes to /v1/completions"

WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"}
)

UNSUPPORTED: Mapping[str, Unsupported] = {
    "n": Unsupported((1,), "send one request for each answer"),
    "best_of": Unsupported((1,), "send one request for each answer"),
    "use_beam_search": Unsupported((False,), _OTHER_SAMPLING),
    "length_penalty": Unsupported((1,), _OTHER_SAMPLING),
    "typical_p": Unsupported((1,), _OTHER_SAMPLING),
    "tfs_z": Unsupported((1,), _OTHER_SAMPLING),
    "mirostat": Unsupported((0,), _OTHER_SAMPLING),
    "xtc_probability": Unsupported((0,), _OTHER_SAMPLING),
    "dry_multiplier": Unsupported((0,), _OTHER_SAMPLING),
    "dynatemp_range": Unsupported((0,), _OTHER_SAMPLING),
    "allowed_token_ids": Unsupported(([],), "use logit_bias"),
    "bad_words": Unsupported(([],), "use logit_bias"),
    "stop_token_ids": Unsupported(([],), "use stop"),
    "include_stop_str_in_output": Unsupported((False,), "stop strings are never part of the answer"),
    "skip_special_tokens": Unsupported((True,), "control tokens are never part of the answer"),
    "min_tokens": Unsupported((0,), "use ignore_eos with a token limit"),
    "n_predict": Unsupported((), _LENGTH),
    "max_new_tokens": Unsupported((), _LENGTH),
    "normalize": Unsupported((True,), "vectors always have unit length"),
    "truncate_prompt_tokens": Unsupported((), "shorten the prompt"),
    "tools": Unsupported(([],), _NO_TOOLS),
    "tool_choice": Unsupported(("none", "auto"), _NO_TOOLS),
    "parallel_tool_calls": Unsupported((True, False), _NO_TOOLS),
    "functions": Unsupported(([],), _NO_TOOLS),
    "function_call": Unsupported(("none", "auto"), _NO_TOOLS),
    "web_search_options": Unsupported((), _NO_TOOLS),
    "response_format": Unsupported(({"type": "text"},), _NO_FORMAT),
    "structured_outputs": Unsupported(({},), _NO_FORMAT),
    "guided_json": Unsupported((), _NO_FORMAT),
    "guided_regex": Unsupported(("",), _NO_FORMAT),
    "guided_choice": Unsupported(([],), _NO_FORMAT),
    "guided_grammar": Unsupported(("",), _NO_FORMAT),
    "grammar": Unsupported(("",), _NO_FORMAT),
    "json_schema": Unsupported(({},), _NO_FORMAT),
    "logprobs": Unsupported((False,), _NO_LOGPROBS),
    "top_logprobs": Unsupported((0,), _NO_LOGPROBS),
    "prompt_logprobs": Unsupported((), _NO_LOGPROBS),
    "echo": Unsupported((False,), "the prompt is not repeated"),
    "suffix": Unsupported(("",), "text can only be continued at its end"),
    "modalities": Unsupported((["text"],), _TEXT_ONLY),
    "audio": Unsupported((), _TEXT_ONLY),
    "prediction": Unsupported((), "leave it out: it changes no answer, only the speed"),
    "reasoning_effort": Unsupported(("none",), "this model has no separate reasoning"),
    "verbosity": Unsupported(("medium",), "say in the prompt how long the answer should be"),
    "store": Unsupported((False,), "answers are not kept"),
    "chat_template": Unsupported((), _PROMPT),
    "chat_template_kwargs": Unsupported(({},), _PROMPT),
    "add_generation_prompt": Unsupported((True,), _PROMPT),
    "continue_final_message": Unsupported((False,), _PROMPT),
    "documents": Unsupported(([],), "put the documents into the prompt"),
}

IN_MESSAGES: Mapping[str, Unsupported] = {
    "tool_calls": Unsupported(([],), _NO_TOOLS),
    "function_call": Unsupported((), _NO_TOOLS),
    "audio": Unsupported((), _TEXT_ONLY),
    "images": Unsupported(([],), _TEXT_ONLY),
    "refusal": Unsupported(("",), "give the text as content"),
}
IN_MESSAGES_WITHOUT_EFFECT = frozenset({"tool_call_id", "annotations"})


def review(plain: Mapping[str, Any], honoured: frozenset[str]) -> tuple[str, ...]:
    """Names of the unknown fields of a decoded request, in their order. Raises `InvalidRequest` for case 1."""
    names = list(_unknown(plain, honoured | WITHOUT_EFFECT, UNSUPPORTED, ""))
    options = plain.get("stream_options")
    if isinstance(options, dict):
        names += _unknown(options, frozenset({"include_usage", "continuous_usage_stats"}), {}, "stream_options.")
    messages = plain.get("messages") if "messages" in honoured else None
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            names += _unknown_in_message(index, message)
    return tuple(dict.fromkeys(names))


def _unknown_in_message(index: int, message: Mapping[str, Any]) -> Iterator[str]:
    known = frozenset({"role", "content", "name"}) | IN_MESSAGES_WITHOUT_EFFECT
    for name in _unknown(message, known, IN_MESSAGES, f"messages[{index}]."):
        yield "messages." + name.partition(".")[2]
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "text":
            yield from _unknown(part, frozenset({"type", "text"}), {}, "messages.content.")


def _unknown(
    fields: Mapping[str, Any], known: frozenset[str], unsupported: Mapping[str, Unsupported], path: str
) -> Iterator[str]:
    for name, value in fields.items():
        if name in known:
            continue
        rule = unsupported.get(name)
        if rule is None:
            yield path + name
        elif value is not None and not any(_same(value, neutral) for neutral in rule.neutral):
            raise InvalidRequest(
                f"{path}{name} is not supported with this value: {rule.instead}",
                code="unsupported_parameter",
                param=path + name,
            )


def _same(value: Any, neutral: Any) -> bool:
    """JSON equality: true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def refuse_unknown(names: tuple[str, ...]) -> InvalidRequest:
    """What a client hears that asked to be told."""
    listed = ", ".join(name[:64] for name in names[:20]) + (", …" if len(names) > 20 else "")
    return InvalidRequest(f"unknown: {listed}", code="unsupported_parameter", param=names[0])
