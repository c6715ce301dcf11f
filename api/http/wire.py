"""The requests of the two text endpoints as clients send them, and what they become for the runtime.

Types are strict: `"stream": "false"` is refused, not guessed at. Null means absent, and of a key that is there twice the last one
counts. Numbers have OpenAI's ranges where OpenAI has the field, else those of the sampler. Documented choices where projects differ:

* `max_completion_tokens` wins over `max_tokens`, and that over `n_predict` and `max_new_tokens`, other servers' names for it; 0
  evaluates the prompt only; a negative limit is refused.
* `seed` has 64 bits; a negative one is taken as two's complement, so -1 is the largest, not "random".
* `top_k` 0 and -1 both keep all tokens. `repetition_penalty` is another name for `repeat_penalty`.
* An empty stop string is refused; at most 16 are taken.
* `prompt_cache_key` is checked before anything else of the request; `cache_prompt: false`, llama-server's, reuses and keeps nothing.
* `priority`: higher goes first, from -100 to 100. vLLM's header `x-vllm-priority` is read as vLLM does, lower first.
"""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.text.chat_options import Effort, choice_of, options_of
from tripower.api.http.text.formats import FormatFields
from tripower.api.http.text.messages import ExactMessage, MessageIn, conversation
from tripower.api.http.text.numbers import logit_bias_of, one_penalty, seed_of
from tripower.api.http.text.prompts import CHOICES_MAX, prompts
from tripower.api.http.text.tools import ChoiceIn, ExactFunctions, ExactTools, Functions, NamedFunction, Tools
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.prefix_cache import check_key

__all__ = [
    "CHAT",
    "COMPLETION",
    "Asked",
    "ChatIn",
    "CompletionIn",
    "ExactMessage",
    "MessageIn",
    "StreamOptions",
    "TextIn",
    "conversation",
]

STOPS_MAX = 16
STOP_CHARACTERS_MAX = 1024
STOP_TOKENS_MAX = 256

Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepeatPenalty = Annotated[float, Meta(ge=0.01, le=10)]
TokenLimit = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
StopString = Annotated[str, Meta(min_length=1, max_length=STOP_CHARACTERS_MAX)]


@attrs.frozen(kw_only=True)
class Asked:
    """Everything that one HTTP request asks of the runtime, and how its answer is to be written."""

    requests: tuple[GenerationRequest, ...]
    """One for each choice: `n` of the first prompt, then `n` of the next."""
    n: int = 1
    echo: bool = False
    tells_prompt: bool = False
    """Whether the caller wants vLLM's figures of the prompt's tokens."""
    keep_stop: bool = False
    """Whether the stop string that ended a text is part of it."""


class StreamOptions(msgspec.Struct, frozen=True):
    """`continuous_usage_stats` puts the figures so far into every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextIn(FormatFields, frozen=True, kw_only=True):
    """What both endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    n_predict: TokenLimit | None = None
    max_new_tokens: TokenLimit | None = None
    min_tokens: TokenLimit | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Meta(max_length=STOPS_MAX)] | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=STOP_TOKENS_MAX)] | None = None
    include_stop_str_in_output: bool | None = None
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
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    prompt_logprobs: Alternatives | None = None
    return_progress: bool | None = None
    prompt_cache_key: str | None = None
    cache_prompt: bool | None = None
    draft_max: Annotated[int, Meta(ge=0, le=64)] | None = None
    user: Any = None

    def check(self) -> None:
        """What types cannot say."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs is part of a whole answer only: leave stream out", param="prompt_logprobs")

    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    def token_limit(self) -> int | None:
        """By the newest of its names that is given."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        if self.max_tokens is not None:
            return self.max_tokens
        return self.n_predict if self.n_predict is not None else self.max_new_tokens

    def common(self) -> dict[str, Any]:
        """The fields of a `GenerationRequest` that both endpoints fill in the same way; what is not said is left out."""
        if self.prompt_cache_key is not None:
            check_key(self.prompt_cache_key)
        self.check()
        fields: dict[str, Any] = {
            "max_tokens": self.token_limit(),
            "stop": self.stops(),
            "ignore_eos": bool(self.ignore_eos),
            "sampling": self.sampling(),
        }
        if (asked := self.output_format()) is not None:
            fields["format_param"], fields["format"] = asked
        if self.stop_token_ids:
            fields["stop_token_ids"] = self.stop_token_ids
        if self.min_tokens:
            fields["min_tokens"] = self.min_tokens
        if self.priority:
            fields["priority"] = self.priority
        if self.prompt_logprobs is not None:
            fields["prompt_logprobs"] = self.prompt_logprobs
        if self.return_progress and self.stream:
            fields["progress"] = True
        if self.prompt_cache_key is not None:
            fields["prompt_cache_key"] = self.prompt_cache_key
        if self.cache_prompt is False:
            fields["cache_prompt"] = False
        if self.draft_max is not None:
            fields["draft_max"] = self.draft_max
        return fields

    def sampling(self) -> SamplingChoices:
        """Raises `InvalidRequest`."""
        return SamplingChoices(
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=one_penalty(self.repeat_penalty, self.repetition_penalty),
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=logit_bias_of(self.logit_bias) if self.logit_bias else (),
            seed=None if self.seed is None else seed_of(self.seed),
        )


class ChatIn(TextIn, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[tuple[MessageIn, ...], Meta(min_length=1, max_length=LISTED_MAX)]
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: Tools | None = None
    tool_choice: str | ChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: str | NamedFunction | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Effort | None = None

    def asked(self, model: str, *, priority: int | None = None) -> Asked:
        """All choices. `priority` is the header's, for a body that names none. Raises `InvalidRequest`."""
        request = self.generation(model, priority=priority)
        return Asked(requests=_choices((request,), self.n or 1), n=self.n or 1, keep_stop=bool(self.include_stop_str_in_output))

    def generation(self, model: str, *, priority: int | None = None) -> GenerationRequest:
        """The first choice. Raises `InvalidRequest`."""
        fields = self.common()
        if self.logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        options, choice = options_of(self), choice_of(self)
        if options is not None:
            fields["chat"] = options
        if choice is not None:
            fields["tool_choice"] = choice
        if priority is not None:
            fields.setdefault("priority", priority)
        return GenerationRequest(model=model, messages=conversation(self.messages), **fields)


class CompletionIn(TextIn, frozen=True, kw_only=True):
    """`POST /v1/completions`. `prompt` is text or token ids, or a list of texts or of lists of token ids."""

    prompt: str | list[Any]
    echo: bool | None = None
    logprobs: Alternatives | None = None

    def asked(self, model: str, *, priority: int | None = None) -> Asked:
        """All choices of all prompts. `priority` is the header's, for a body that names none. Raises `InvalidRequest`."""
        fields = self.common()
        if self.logprobs is not None:
            fields["logprobs"] = self.logprobs
            if self.echo:
                fields["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        if priority is not None:
            fields.setdefault("priority", priority)
        n = self.n or 1
        found = prompts(self.prompt)
        if len(found) * n > CHOICES_MAX:
            raise InvalidRequest(f"n: {len(found)} prompts with {n} answers each are more than {CHOICES_MAX}", param="n")
        requests = tuple(GenerationRequest(model=model, prompt=prompt, **fields) for prompt in found)
        return Asked(
            requests=_choices(requests, n),
            n=n,
            echo=bool(self.echo),
            tells_prompt=self.prompt_logprobs is not None,
            keep_stop=bool(self.include_stop_str_in_output),
        )

    def generation(self, model: str) -> GenerationRequest:
        """The first choice. Raises `InvalidRequest`."""
        return self.asked(model).requests[0]


class ExactStreamOptions(StreamOptions, frozen=True, forbid_unknown_fields=True):
    """The same, and nothing else."""


class ExactChat(ChatIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    messages: Annotated[tuple[ExactMessage, ...], Meta(min_length=1, max_length=LISTED_MAX)]
    stream_options: ExactStreamOptions | None = None
    tools: ExactTools | None = None
    functions: ExactFunctions | None = None


class ExactCompletion(CompletionIn, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, and nothing else."""

    stream_options: ExactStreamOptions | None = None


CHAT = RequestDecoder[ChatIn](ChatIn, ExactChat)
COMPLETION = RequestDecoder[CompletionIn](CompletionIn, ExactCompletion)


def _choices(requests: tuple[GenerationRequest, ...], n: int) -> tuple[GenerationRequest, ...]:
    """Each request `n` times; the choices of one prompt are numbered, so that each draws by itself."""
    if n == 1:
        return requests
    return tuple(msgspec.structs.replace(request, choice=choice) for request in requests for choice in range(n))
