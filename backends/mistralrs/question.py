"""A request in the words of mistral.rs: what the caller said and nothing else."""

from __future__ import annotations

from typing import Any

from tripower.runtime.engine import DelegateRequest

NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


def chat_options(request: DelegateRequest) -> dict[str, Any]:
    """For `ChatCompletionRequest`. Stop strings are left to the runtime: a streamed chat does not heed them."""
    messages = [
        {"role": message.role, "content": message.content} | ({"name": message.name} if message.name else {})
        for message in request.messages or ()
    ]
    return {"messages": messages} | common_options(request)


def completion_options(request: DelegateRequest) -> dict[str, Any]:
    """For `CompletionRequest`, where stop strings save work."""
    stops = {"stop_seqs": list(request.stop)} if request.stop else {}
    return {"prompt": request.prompt} | stops | common_options(request)


def common_options(request: DelegateRequest) -> dict[str, Any]:
    """What both take. `top_k` 0 keeps all, which is said by leaving it out."""
    given = {theirs: getattr(request.sampling, ours) for ours, theirs in NAMES.items()}
    if not given["top_k"]:
        given["top_k"] = None
    if request.sampling.logit_bias:
        given["logit_bias"] = dict(request.sampling.logit_bias)
    return {name: value for name, value in given.items() if value is not None} | {
        "max_tokens": request.max_tokens,
        "ignore_eos": request.ignore_eos,
    }
