"""The requests of the two text endpoints as clients send them, and what they become for the runtime.

Types are strict: `"stream": "false"` is refused, not guessed at. Null means absent. Numbers have OpenAI's ranges where OpenAI has the
field, else those of the sampler. Documented choices where projects differ:

* `max_completion_tokens` wins over `max_tokens`; 0 evaluates the prompt only; a negative limit is refused.
* `seed` has 64 bits; a negative one is taken as two's complement, so -1 is the largest, not "random".
* `top_k` 0 and -1 both keep all tokens. `repetition_penalty` is another name for `repeat_penalty`.
* An empty stop string is refused; at most 16 are taken.
* Parts of a message's content are joined as they are, without anything between them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.api.http.decoding import RequestDecoder
from tripower.runtime.engine import ChatMessage
from tripower.runtime.kernel import InvalidRequest

STOPS_MAX = 16
STOP_CHARACTERS_MAX = 1024
LOGIT_BIAS_MAX = 1024
ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
NAME = re.compile(r"[^\s<|\\/>]{1,64}")
"""What OpenAI allows; above all nothing that a control token is made of."""
UINT64 = 1 << 64

Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepeatPenalty = Annotated[float, Meta(ge=0.01, le=10)]
TokenLimit = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=STOP_CHARACTERS_MAX)]


class PartIn(msgspec.Struct, frozen=True):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class MessageIn(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | tuple[PartIn, ...] | None = None
    name: str | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`continuous_usage_stats` puts the figures so far into every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextIn(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Meta(max_length=STOPS_MAX)] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    repeat_penalty: RepeatPenalty | None = None
    repetition_penalty: RepeatPenalty | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    user: Any = None

    def check(self) -> None:
        """What types cannot say."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")

    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def sampling(self) -> SamplingChoices:
        """Raises `InvalidRequest`."""
        return SamplingChoices(
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=_one_of(self.repeat_penalty, self.repetition_penalty),
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_logit_bias(self.logit_bias) if self.logit_bias else (),
            seed=None if self.seed is None else _seed(self.seed),
        )


class ChatIn(TextIn, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[tuple[MessageIn, ...], Meta(min_length=1)]

    def generation(self, model: str) -> GenerationRequest:
        """Raises `InvalidRequest`."""
        self.check()
        return GenerationRequest(
            model=model,
            messages=conversation(self.messages),
            max_tokens=self.token_limit(),
            stop=self.stops(),
            ignore_eos=bool(self.ignore_eos),
            sampling=self.sampling(),
        )


class CompletionIn(TextIn, frozen=True, kw_only=True):
    """`POST /v1/completions`. `prompt` is text or token ids, or a list of exactly one of them."""

    prompt: str | list[Any]

    def generation(self, model: str) -> GenerationRequest:
        """Raises `InvalidRequest`."""
        self.check()
        return GenerationRequest(
            model=model,
            prompt=_prompt(self.prompt),
            max_tokens=self.token_limit(),
            stop=self.stops(),
            ignore_eos=bool(self.ignore_eos),
            sampling=self.sampling(),
        )


class ExactPart(PartIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactMessage(MessageIn, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    content: str | tuple[ExactPart, ...] | None = None


class ExactStreamOptions(StreamOptions, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactChat(ChatIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    messages: Annotated[tuple[ExactMessage, ...], Meta(min_length=1)]
    stream_options: ExactStreamOptions | None = None


class ExactCompletion(CompletionIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    stream_options: ExactStreamOptions | None = None


CHAT = RequestDecoder[ChatIn](ChatIn, ExactChat)
COMPLETION = RequestDecoder[CompletionIn](CompletionIn, ExactCompletion)


def conversation(messages: tuple[MessageIn, ...]) -> tuple[ChatMessage, ...]:
    """Messages as the runtime takes them. Raises `InvalidRequest` naming the first that it cannot take."""
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, message: MessageIn) -> ChatMessage:
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"messages[{index}].role is one of {', '.join(ROLES)}", param=f"messages[{index}].role")
    if message.name is not None and not NAME.fullmatch(message.name):
        raise InvalidRequest(
            f"messages[{index}].name has at most 64 characters, without spaces and any of <|\\/>",
            param=f"messages[{index}].name",
        )
    return ChatMessage(role, _content(index, role, message.content), message.name)


def _content(index: int, role: str, content: str | tuple[PartIn, ...] | None) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise InvalidRequest(f"messages[{index}].content is missing", param=f"messages[{index}].content")
    return "".join(_part(f"messages[{index}].content[{place}]", part) for place, part in enumerate(content))


def _part(path: str, part: PartIn) -> str:
    if part.type != "text":
        raise InvalidRequest(
            f"{path}: parts of type {part.type[:40]} are not supported: this model reads text only",
            code="unsupported_parameter",
            param=path,
        )
    if part.text is None:
        raise InvalidRequest(f"{path}.text is missing", param=f"{path}.text")
    return part.text


def _prompt(prompt: str | list[Any]) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0], str | list):
        return _prompt_of_one(prompt[0])
    if len(prompt) > 1 and all(isinstance(each, str | list) for each in prompt):
        raise InvalidRequest(
            f"prompt: this server answers one prompt a request, not {len(prompt)}; send one request for each",
            code="unsupported_parameter",
            param="prompt",
        )
    return _tokens(prompt)


def _prompt_of_one(prompt: str | list[Any]) -> str | tuple[int, ...]:
    return prompt if isinstance(prompt, str) else _tokens(prompt)


def _tokens(prompt: list[Any]) -> tuple[int, ...]:
    if not prompt:
        raise InvalidRequest("prompt: the list is empty", param="prompt")
    if not all(type(token) is int and 0 <= token < 1 << 31 for token in prompt):
        raise InvalidRequest("prompt: expected text, or a list of token ids", param="prompt")
    return tuple(prompt)


def _one_of(repeat_penalty: float | None, repetition_penalty: float | None) -> float | None:
    if repeat_penalty is None or repetition_penalty is None:
        return repetition_penalty if repeat_penalty is None else repeat_penalty
    if repeat_penalty != repetition_penalty:
        raise InvalidRequest(
            "repeat_penalty and repetition_penalty are one setting; give one of them", param="repetition_penalty"
        )
    return repeat_penalty


def _seed(seed: int) -> int:
    if not -(UINT64 >> 1) <= seed < UINT64:
        raise InvalidRequest("seed has at most 64 bits", param="seed")
    return seed % UINT64


def _logit_bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > LOGIT_BIAS_MAX:
        raise InvalidRequest(f"logit_bias has at most {LOGIT_BIAS_MAX} entries", param="logit_bias")
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise InvalidRequest(f"logit_bias: {token[:20]!r} is no token id", param="logit_bias")
        if not -100 <= bias <= 100:
            raise InvalidRequest(f"logit_bias of {token} is not within -100 and 100", param="logit_bias")
    return tuple((int(token), bias) for token, bias in given.items())
