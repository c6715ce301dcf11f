"""One request in a model's queue: what is checked before it gets a place, what is remembered of it, what it hears and when."""

from __future__ import annotations

import attrs

from tripower.actors.dialogue import GenerationEvent, GenerationStarted, PromptProgress, PromptScored
from tripower.actors.queueing import PROMPT_EVENTS_MAX, Generate
from tripower.actors.request_paths import RequestPath, queued_path
from tripower.backends.text.stream import TextStream
from tripower.runtime.batching import Member
from tripower.runtime.engine import Constraint, EngineInfo
from tripower.runtime.engine.contract import ROW_ABILITIES
from tripower.runtime.engine.drafting import Drafter
from tripower.runtime.engine.logprobs import NO_LOGPROBS, TOP_LOGPROBS_MAX
from tripower.runtime.kernel import InvalidRequest, Outlet

PROGRESS_PARTS = PROMPT_EVENTS_MAX - 2
"""Parts of a prompt whose ends are told of, each once at most. One more event is `PromptScored`."""


def check_generate(message: Generate, info: EngineInfo, *, constrained: bool) -> None:
    """Raise `InvalidRequest`, naming the field, for what an engine cannot run. Whoever prepares requests has checked most of it."""
    if not message.prompt:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if message.max_tokens < 0:
        raise InvalidRequest("max_tokens must not be negative", param="max_tokens")
    if "" in message.stop:
        raise InvalidRequest("a stop string is empty", param="stop")
    if len(message.prompt) + max(message.max_tokens, 1) > info.context_max + 1:
        raise InvalidRequest(
            f"this model's maximum context length is {info.context_max} tokens; "
            f"{len(message.prompt)} of the prompt and {message.max_tokens} new ones do not fit",
            code="context_length_exceeded",
        )
    for token in message.stop_token_ids:
        if not 0 <= token < info.vocabulary_size:
            raise InvalidRequest(
                f"stop_token_ids names the token {token}, outside 0..{info.vocabulary_size - 1}", param="stop_token_ids"
            )
    for name in ("logprobs", "prompt_logprobs"):
        if not NO_LOGPROBS <= getattr(message, name) <= TOP_LOGPROBS_MAX:
            raise InvalidRequest(f"{name} is a number of alternatives from 0 to {TOP_LOGPROBS_MAX}", param=name)
    asked = {
        "format": constrained,
        "logprobs": message.logprobs != NO_LOGPROBS,
        "prompt_logprobs": message.prompt_logprobs != NO_LOGPROBS,
        "min_tokens": message.sampling.banned_until > 0,
    }
    for name in ROW_ABILITIES:
        if asked[name] and name in info.unsupported:
            raise InvalidRequest(
                f"the engine {info.backend} cannot do {name}: leave it out, or ask a model of another engine",
                code="unsupported_by_engine",
                param=name,
            )


@attrs.define(eq=False)
class QueuedGeneration:
    """What the queue remembers of one request."""

    ticket: int
    request: Generate
    outlet: Outlet[GenerationEvent]
    text: TextStream
    deadline: float
    arrived_at: float
    constraint: Constraint | None = None
    drafter: Drafter | None = None
    taken: int = 0
    """Tokens of the answer, so far."""
    seated_at: float = 0.0
    first_token_at: float = 0.0
    begun: bool = False
    """Whether the stream's beginning has been said: with the first step's news, so that it costs no wake-up of its own."""
    parts_told: int = 0
    """Of `PROGRESS_PARTS`."""
    leader: Member[QueuedGeneration] | None = None
    """The member whose prompt this one waits for, and"""
    wanted: int = 0
    """how much of it."""
    missed: str = ""
    """Why nothing of the prompt was there already."""
    scored: bool = False
    """Whether the prompt's log probabilities have been said."""
    member: Member[QueuedGeneration] | None = None
    """None again at its end: the two refer to each other, and would keep the model's text layer until a collection."""

    def say(self, event: GenerationEvent) -> None:
        """Put an event into the outlet, behind the stream's beginning where there is a seat."""
        if not self.begun and self.member is not None:
            self.begun = True
            self.outlet.put(GenerationStarted(self.seated_at - self.arrived_at))
        self.outlet.put(event)

    def tell_prompt(self, now: float) -> None:
        """Say what was asked of the prompt and is new: how far it is evaluated, and at its end its log probabilities."""
        member, request = self.member, self.request
        if member is None or not (request.progress or request.prompt_logprobs != NO_LOGPROBS):
            return
        total = len(member.prompt)
        processed = min(member.evaluated, total)
        parts = PROGRESS_PARTS * processed // total
        if request.progress and parts > self.parts_told:
            self.parts_told = parts
            self.say(PromptProgress(total, member.reused, processed, now - self.seated_at))
        if processed == total and not self.scored and request.prompt_logprobs != NO_LOGPROBS:
            self.scored = True
            self.say(PromptScored(tuple(member.prompt_told)))

    def path(self, model: str, now: float) -> RequestPath:
        """Where it is at a time."""
        member, request = self.member, self.request
        return queued_path(
            model=model,
            request_id=request.request_id,
            caller=request.caller,
            priority=request.priority,
            deadline=self.deadline,
            arrived_at=self.arrived_at,
            seated_at=None if member is None else self.seated_at,
            first_at=self.first_token_at if self.taken else None,
            now=now,
            prompt_tokens=len(request.prompt),
            evaluated_tokens=0 if member is None else min(member.evaluated, len(request.prompt)),
            reused_tokens=0 if member is None else member.reused,
            generated_tokens=self.taken,
            tokens_max=request.max_tokens,
        )
