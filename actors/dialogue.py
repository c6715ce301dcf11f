"""The words of one generation, from whoever asks to the queue that answers.

A stream has one beginning (`GenerationStarted`), items (`TokenChunk`) and exactly one end (`GenerationFinished` or `Failed`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tripower.backends.proxy.errors import UPSTREAM_ERRORS
from tripower.runtime.admission import ANYBODY, Caller
from tripower.runtime.engine import ChatMessage, ChatOptions, OutputFormat, SamplingChoices, TokenLogprobs, ToolChoice
from tripower.runtime.kernel import (
    ActorGone,
    DeadlineExceeded,
    DeviceFailed,
    InvalidRequest,
    Message,
    Overloaded,
    TripowerError,
    Unavailable,
)

__all__ = [  # SamplingChoices too: it is part of a request, so of its words
    "ERRORS",
    "AnswerEvent",
    "Failed",
    "GenerationEvent",
    "GenerationFinished",
    "GenerationRequest",
    "GenerationStarted",
    "PromptProgress",
    "PromptScored",
    "SamplingChoices",
    "Timings",
    "TokenChunk",
    "Usage",
]

_ERRORS: tuple[type[TripowerError], ...] = (
    ActorGone,
    DeadlineExceeded,
    DeviceFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
    *UPSTREAM_ERRORS,
)
ERRORS: Mapping[str, type[TripowerError]] = {
    "context_length_exceeded": InvalidRequest,
    "format_exhausted": InvalidRequest,
    "share_exceeded": Overloaded,
} | {kind.code: kind for kind in _ERRORS}
"""What can end a generation that has begun; an error with a code of its own comes back as `TripowerError`."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer asked for: of a conversation (`messages`) or of a plain prompt (text or token ids), exactly one of the two."""

    model: str
    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None = None
    """None: what room is left in the context for a conversation, 16 for a plain prompt. 0 evaluates the prompt only."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer like the model's own end tokens; they are no part of it."""
    min_tokens: int = 0
    """No end token is drawn before there are so many."""
    ignore_eos: bool = False
    sampling: SamplingChoices = SamplingChoices()
    choice: int = 0
    """Which of several answers to one request this is: with `seed`, it keys the draws."""
    logprobs: int | None = None
    """Alternatives to tell of at each generated token, 0 to 20; None tells nothing."""
    prompt_logprobs: int | None = None
    """The same at each token of the prompt."""
    format: OutputFormat | None = None
    """What the answer has to look like."""
    format_param: str = "response_format"
    """The field that said so, for errors."""
    chat: ChatOptions = ChatOptions()
    """Tools and template variables of a conversation."""
    tool_choice: ToolChoice = ToolChoice()
    progress: bool = False
    """Whether `PromptProgress` is wanted while the prompt is evaluated."""
    draft_max: int | None = None
    """Longest guess in tokens where the service guesses; 0 guesses nothing; None: as the service is set. No answer depends on it."""
    caller: Caller = ANYBODY
    request_id: str = ""
    """Whatever whoever asks calls it; told with the seat that it has, and nothing else."""
    traceparent: str = ""
    """The trace that the work belongs to, in W3C's form; a remote engine is told."""
    prompt_cache_key: str | None = None
    """States of its prompt are shared only with the same caller's requests of the same key. None is a key of its own."""
    cache_prompt: bool = True
    """Whether states of earlier prompts may be reused, and its own kept: neither changes the answer."""
    priority: int = 0
    """Among the requests of one caller, and never so that another one waits for ever: higher goes first, -100 to 100."""


class GenerationStarted(Message, frozen=True):
    """The answer begins. Comes with the first event after it."""

    waited_seconds: float
    """Time in the waiting room."""

    @property
    def text(self) -> str:
        """None yet: every event of an answer has a text, and together they are the answer."""
        return ""


class TokenChunk(Message, frozen=True):
    """One token of a committed step and the text that it releases, which may be empty: characters and stop strings are not split.

    From an engine that tells no ids it is a piece of text, and `token` is -1.
    """

    token: int
    text: str
    logprobs: TokenLogprobs | None = None
    """Where they were asked for."""


class PromptProgress(Message, frozen=True):
    """So much of the prompt is evaluated. Comes before the first token, where it was asked for."""

    total: int
    cached: int
    processed: int
    seconds: float

    @property
    def text(self) -> str:
        """None."""
        return ""


class PromptScored(Message, frozen=True):
    """The log probabilities of the prompt's tokens from the second on. Comes before the first token, where it was asked for."""

    tokens: tuple[TokenLogprobs, ...]

    @property
    def text(self) -> str:
        """None."""
        return ""


class Usage(msgspec.Struct, frozen=True):
    """Tokens evaluated and generated. The token that ended the text counts. 0 prompt tokens: the engine did not tell."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt whose state was there already."""


class Timings(msgspec.Struct, frozen=True):
    """Seconds in the waiting room, until the first token, and after it."""

    wait_seconds: float
    prefill_seconds: float
    decode_seconds: float
    drafted: int = 0
    accepted: int = 0
    """Guessed tokens that were evaluated, and those of them that were right."""
    passes: int = 0
    replays: int = 0
    """Steps that drew for an answer with guesses, and those of them in which a guess was wrong."""


class GenerationFinished(Message, frozen=True):
    """The regular end. `reason` is `stop` or `length`, or what a remote engine calls it; `text` is what was held back."""

    reason: str
    text: str
    usage: Usage
    timings: Timings
    stopped_by: str | int | None = None
    """The stop string, or the stop token that the caller named."""


class Failed(Message, frozen=True):
    """The end by an error. What was streamed before stays valid."""

    code: str
    message: str
    status: int
    kind: str
    param: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: TripowerError) -> Failed:
        """The end by this error."""
        return cls(error.code, error.message, error.status, error.kind, error.param, error.retry_after)

    def error(self) -> TripowerError:
        """The exception that stands for this end, of the class that its code belongs to."""
        return ERRORS.get(self.code, TripowerError)(
            self.message,
            code=self.code,
            status=self.status,
            kind=self.kind,
            param=self.param,
            retry_after=self.retry_after,
        )


AnswerEvent = GenerationStarted | PromptProgress | PromptScored | TokenChunk | GenerationFinished
"""What iterating over a generation gives: the end by an error is raised there. The texts together are the answer."""
GenerationEvent = AnswerEvent | Failed
