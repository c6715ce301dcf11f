"""One question, one answer, wherever the model is: what `run` and `chat` ask for and get."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tripower.actors.request_checks import check_request
from tripower.api.embedding import make_request
from tripower.runtime.kernel import InvalidConfiguration, InvalidRequest

Show = Callable[[str], None]
"""Takes a piece of the answer as it comes."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, or a plain `prompt` to be continued. `options` are those that were given, by their names in the API."""

    messages: tuple[dict[str, str], ...] = ()
    prompt: str | None = None
    options: dict[str, Any] = {}
    timeout: float | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer when it is complete. None where a server does not say."""

    finish_reason: str
    prompt_tokens: int | None = None
    tokens: int | None = None
    first_token_seconds: float | None = None
    """From the question to the first token, a load left out."""
    tokens_per_second: float | None = None
    """After the first token."""
    seed: int | None = None


class Service(Protocol):
    """Whoever answers."""

    model: str

    async def answer(self, question: Question, show: Show) -> Summary:
        """Stream one answer. Blocks until it is complete. Raises `TripowerError`; may be cancelled at any time."""


TEMPERATURE = 0.7
"""Where neither the user nor the model file says anything: OpenAI's 1.0 makes small models ramble."""
OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop")


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given. Raises `InvalidConfiguration` for one that no model could be asked with."""
    given = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    try:
        check_request(make_request("", given, prompt=""))
    except InvalidRequest as error:
        raise InvalidConfiguration(f"--{str(error.param).replace('_', '-')}: {error.message}", param=error.param) from error
    return given


def closing_line(summary: Summary) -> str:
    """What is said after an answer: tokens, tokens a second, time to the first one."""
    parts = []
    if summary.tokens is not None:
        parts.append(f"{summary.tokens} token{'' if summary.tokens == 1 else 's'}")
    if summary.tokens_per_second is not None:
        parts.append(f"{summary.tokens_per_second:.1f} tokens/s")
    if summary.first_token_seconds is not None:
        parts.append(f"first token after {summary.first_token_seconds:.2f} s")
    if summary.finish_reason == "length":
        parts.append("cut off at its limit")
    return ", ".join(parts)
