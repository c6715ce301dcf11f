"""The contract between the runtime and an engine that generates by itself.

A *delegate* has a tokenizer, a batch and a sampler of its own: it takes a whole request and answers with events. The runtime keeps what
a caller relies on whatever runs the model: seats and waiting room, deadlines, cancellation, stop strings, one honest end. What a
delegate cannot honour is stated in `DelegateAbilities`, and a request that needs it is refused by name before it has a seat.

Everything here is awaited in the Trio loop, and nothing in it may block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

import msgspec

from tripower.runtime.engine.contract import ChatMessage, EngineInfo, LoadSpecification, Progress
from tripower.runtime.engine.sampling_parameters import SamplingChoices
from tripower.runtime.kernel.errors import InvalidRequest


class DelegateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One answer asked for: of a conversation or of a plain prompt, exactly one of the two. None leaves a choice to the engine."""

    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    """Only a hint: the runtime ends the text there whether the engine does or not."""
    ignore_eos: bool = False
    sampling: SamplingChoices = SamplingChoices()
    traceparent: str = ""
    """The trace that the work belongs to, for engines elsewhere."""


class DelegatePiece(msgspec.Struct, frozen=True):
    """Some text, whole characters, may be empty. `tokens` is how many stand behind it: 1 where the engine does not tell."""

    text: str
    tokens: int = 1


class DelegateEnd(msgspec.Struct, frozen=True):
    """The last event of a complete answer: `stop`, `length`, or what else the engine calls its reason. Counts are None when unknown."""

    reason: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


DelegateEvent = DelegatePiece | DelegateEnd

SAMPLING_OPTIONS = frozenset(SamplingChoices.__struct_fields__)
"""The names that `DelegateAbilities.options` may hold, beside `ignore_eos`."""


class DelegateAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request an engine honours."""

    chat: bool = True
    completion: bool = True
    """Plain prompts, as text."""
    token_prompts: bool = False
    """Plain prompts as token ids of the engine's own vocabulary."""
    completion_tokens_max: int | None = None
    """Longest answer to a plain prompt."""
    tokens_min: int = 0
    """Smallest `max_tokens`."""
    options: frozenset[str] = frozenset()
    """Of `SAMPLING_OPTIONS` and `ignore_eos`."""
    roles: frozenset[str] | None = None
    """Roles of messages; None for any."""
    cure: str = ""
    """What to do about a refused option; the end of the message."""

    def check(self, request: DelegateRequest, backend: str) -> None:
        """Raise `InvalidRequest` (`unsupported_by_engine`) naming the first thing that the engine would not honour."""
        for param, why in self._refusals(request):
            raise InvalidRequest(
                f"the engine {backend} {why}{self.cure and '; ' + self.cure}", code="unsupported_by_engine", param=param
            )

    def _refusals(self, request: DelegateRequest) -> list[tuple[str, str]]:
        return [*self._text_refusals(request), *self._option_refusals(request)]

    def _text_refusals(self, request: DelegateRequest) -> list[tuple[str, str]]:
        found = []
        limit, longest = request.max_tokens, self.completion_tokens_max
        if request.messages is not None and not self.chat:
            found.append(("messages", "answers no conversations with this model"))
        if request.prompt is not None and not self.completion:
            found.append(("prompt", "continues no plain prompts"))
        if isinstance(request.prompt, tuple) and not self.token_prompts:
            found.append(("prompt", "takes prompts as text only, not as token ids"))
        if request.prompt is not None and longest is not None and (limit is None or limit > longest):
            found.append(("max_tokens", f"continues a plain prompt by at most {longest} tokens"))
        if limit is not None and limit < self.tokens_min:
            found.append(("max_tokens", f"generates at least {self.tokens_min} token"))
        for message in request.messages or ():
            if self.roles is not None and message.role not in self.roles:
                found.append(("messages", f"knows no role {message.role!r}, only {', '.join(sorted(self.roles))}"))
        return found

    def _option_refusals(self, request: DelegateRequest) -> list[tuple[str, str]]:
        asked = [name for name, value in msgspec.structs.asdict(request.sampling).items() if value not in (None, ())]
        if request.ignore_eos:
            asked.append("ignore_eos")
        return [(name, f"does not honour {name}") for name in asked if name not in self.options]


class DelegateEngine(Protocol):
    """One model behind a delegate.

    One that has never streamed holds nothing that would have to be closed, so it may be let go without `close`.
    """

    info: EngineInfo
    """`vocabulary_size` and `context_max` are 0 where the engine does not tell; `sequences_max` 0 means as many as there are seats."""
    abilities: DelegateAbilities

    def stream(self, request: DelegateRequest, *, seconds: float) -> AbstractAsyncContextManager[AsyncIterator[DelegateEvent]]:
        """Ask, and iterate over pieces and one `DelegateEnd`; nothing happens before the block is entered.

        `seconds` is what is left of the caller's time, `math.inf` for no bound: for timeouts, and for whoever is asked in turn; the
        caller's cancel scope ends the stream in any case. Leaving the block at any point, by cancellation too, stops the generation
        and waits, within a budget, until it takes nothing any more. Raises a `TripowerError`, on entering or while iterating; an
        answer that breaks off raises too, and never ends as if it were complete.
        """

    async def close(self) -> None:
        """Free everything, after the last stream. Idempotent."""


class LoadedDelegate(msgspec.Struct, frozen=True):
    """A delegate that is ready to be asked."""

    engine: DelegateEngine


@runtime_checkable
class DelegateBackend(Protocol):
    """Makes delegates ready."""

    name: str

    async def open_delegate(self, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
        """Load a model, or find that a remote one answers. May be cancelled. Raises `ModelRefused` or `Unavailable`."""
