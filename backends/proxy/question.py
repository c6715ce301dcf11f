"""The request as it is sent: what the caller said and nothing else, so that the upstream's own defaults hold for the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from tripower.runtime.engine import DelegateAbilities, DelegateRequest, SamplingChoices

COMMON = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed"})
"""What every OpenAI-compatible server understands."""
EXTENSIONS: Mapping[str, str] = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "ignore_eos": "ignore_eos",
}
"""What only some do: the names that they may have there, and ours."""
DEADLINE_HEADER = "x-tripower-deadline-ms"
INT64 = 1 << 63


def abilities_with(extensions: tuple[str, ...]) -> DelegateAbilities:
    """What may be asked of an upstream that understands these extensions."""
    return DelegateAbilities(
        token_prompts=True,
        options=COMMON | {EXTENSIONS[name] for name in extensions},
        cure="where the server behind it does, name it in proxy.extensions",
    )


def endpoint(request: DelegateRequest) -> str:
    """The path of a request's endpoint."""
    return "completions" if request.messages is None else "chat/completions"


def body_of(request: DelegateRequest, model: str, extensions: tuple[str, ...]) -> bytes:
    """The JSON of a streamed request."""
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if request.messages is None:
        body["prompt"] = request.prompt
    else:
        body["messages"] = [
            {"role": message.role, "content": message.content} | ({"name": message.name} if message.name else {})
            for message in request.messages
        ]
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.stop:
        body["stop"] = request.stop
    return msgspec.json.encode(body | sampling_of(request.sampling) | extras_of(request, extensions))


def sampling_of(sampling: SamplingChoices) -> dict[str, Any]:
    """The common options that were given."""
    given = {name: value for name, value in msgspec.structs.asdict(sampling).items() if name in COMMON and value is not None}
    bias = given.pop("logit_bias")
    if bias:
        given["logit_bias"] = {str(token): value for token, value in bias}
    if given.get("seed", 0) >= INT64:
        given["seed"] -= 2 * INT64  # the same 64 bits for servers that keep a seed in a signed number
    return given


def extras_of(request: DelegateRequest, extensions: tuple[str, ...]) -> dict[str, Any]:
    """The other options that were given, under the upstream's names."""
    given = msgspec.structs.asdict(request.sampling) | {"ignore_eos": request.ignore_eos or None}
    return {name: given[EXTENSIONS[name]] for name in extensions if given[EXTENSIONS[name]] is not None}


def headers_of(key: str, seconds: float, traceparent: str = "") -> dict[str, str]:
    """Never anything of the client that asked us: only our own key, the time that is left, and our own span where there is one."""
    headers = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    if math.isfinite(seconds):
        headers[DEADLINE_HEADER] = str(max(1, round(1000 * seconds)))
    if traceparent:
        headers["traceparent"] = traceparent
    return headers
