"""What is said to and by a queue of one model: requests, tickets, limits and figures, whichever engine is behind it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import attrs
import msgspec

from tripower.actors.request_paths import RequestPath
from tripower.runtime.admission import ANYBODY, Caller, GateStatistics
from tripower.runtime.batching import BatchStatistics
from tripower.runtime.engine import Constraint, SamplingParameters
from tripower.runtime.engine.drafting import Drafter
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.kernel import Ask, Message, NotFound, Outlet, TripowerError, Unavailable
from tripower.runtime.prefix_cache import PrefixSettings, PrefixStatistics
from tripower.runtime.speculation import SpeculationSettings


class Generate(Ask["Enqueued"], frozen=True):
    """Generate from these tokens. The envelope carries `AnswerParts`."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParameters
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = NO_LOGPROBS
    prompt_logprobs: int = NO_LOGPROBS
    visible: frozenset[int] = frozenset()
    """Control tokens that are part of the text."""
    progress: bool = False
    caller: Caller = ANYBODY
    priority: int = 0
    request_id: str = ""
    namespace: str = ""
    """Of states that may be reused, see `runtime.prefix_cache`; empty: none are, and none is kept."""


@attrs.frozen
class AnswerParts:
    """What is alive of a request: where its events go, and what its tokens are held to."""

    outlet: Outlet[Any]
    """Of `outlet_room(max_tokens)` items of `GenerationEvent`."""
    constraint: Constraint | None = None
    drafter: Drafter | None = None
    """What guesses its tokens, where anything does."""


class Enqueued(Message, frozen=True):
    """The request has a seat or a waiting place. Whoever gets this must send `Leave` when it goes before the end."""

    ticket: int


class Leave(Message, frozen=True):
    """Whoever asked wants nothing more; unknown tickets are ignored. `expired`: because its deadline passed."""

    ticket: int
    expired: bool = False


class DrainQueue(Ask["QueueDrained"], frozen=True):
    """Take no more requests. Answered when nobody is left; a queue that ends first answers nothing."""


class QueueDrained(Message, frozen=True):
    """Nobody waits or runs, and no step does. The queue takes no more."""


class SettleQueue(Ask["QueueSettled"], frozen=True):
    """Answered when whoever has left by now holds no seat any more."""


class QueueSettled(Message, frozen=True):
    """Their seats are free."""


class CancelTicket(Ask["TicketCancelled"], frozen=True):
    """Fail a request that waits or runs with `request_cancelled`. Refused with `NotFound` when it does neither."""

    ticket: int


class TicketCancelled(Message, frozen=True):
    """Its caller has been told. Its seat may be free a moment later: see `SettleQueue`."""


class FollowTicket(Ask["TicketFollowed"], frozen=True):
    """Let a `Tap`, which the envelope carries, hear what a request hears. Refused with `NotFound` when it neither waits nor runs."""

    ticket: int


class TicketFollowed(Message, frozen=True):
    """The tap hears everything from now on."""

    path: RequestPath
    """Where the request is at this moment."""


MODEL_UNLOADING = "model_unloading"
REQUEST_CANCELLED = "request_cancelled"
PROMPT_EVENTS_MAX = 66
"""`PromptScored`, and how often a prompt's progress is told."""


class CloseStates(Message, frozen=True):
    """From the queue to itself: the batch has been empty for a moment, so free what the device still holds of it."""


class ExpireStates(Message, frozen=True):
    """From the queue to itself: some state that is kept for reuse has been idle for too long."""


def outlet_room(max_tokens: int) -> int:
    """Events that one generation can have at most: the start, the prompt's figures, a chunk for each token, the end."""
    return max_tokens + 2 + PROMPT_EVENTS_MAX


def unloading(model: str) -> Unavailable:
    """What somebody hears who found the queue just before it closed."""
    return Unavailable(f"{model} is being unloaded; the next request loads it again", code=MODEL_UNLOADING, retry_after=1.0)


def cancellation() -> TripowerError:
    """What a cancelled request hears."""
    return TripowerError("the request was cancelled", code=REQUEST_CANCELLED, status=499)


def not_there(model: str, ticket: int) -> NotFound:
    """What somebody hears who asks about a ticket that has ended, or never was."""
    return NotFound(f"no request {model}#{ticket} waits or runs", code="request_not_found")


@attrs.frozen(kw_only=True)
class QueueLimits:
    """Seats in the batch, waiting places, inner steps of one job, rows of one step; prompt rows while others stream (0: no limit)."""

    members_max: int
    waiting_max: int
    steps_per_job: int
    rows_max: int
    mixed_rows: int = 0
    speculation: SpeculationSettings | None = None
    """How tokens are guessed; None: not at all. Read by whoever prepares requests."""
    prefix: PrefixSettings | None = None
    """What is kept of prompts for whoever asks again; None: nothing."""


class SeatStatistics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A seat that is taken, at one instant. Nothing of what is said there."""

    ticket: int
    identity: str
    request_id: str
    prompt_tokens: int
    evaluated: int
    """Positions whose state the engine holds."""
    generated: int
    tokens_max: int
    sampling: SamplingParameters


class SpeculationStatistics(msgspec.Struct, frozen=True):
    """By what a queue's tokens are guessed, and what that took; counts are the batch's. Times are seconds."""

    backend: str
    strategy: str
    decode_seconds: float
    """Of answers with guesses, after their first tokens."""
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    """In drafters, and in steps that evaluated guesses, other members' rows included: by a monotonic clock, of jobs that have ended."""
    fallbacks: int = 0
    """Times that a request stopped guessing, until guesses would have been right again."""


class AnswerFigures(msgspec.Struct, frozen=True, gc=False):
    """How long one complete answer took. Times are seconds."""

    at: float
    """When it was complete, on Trio's clock."""
    first_token: float
    """From its arrival in the queue."""
    token_interval: float | None
    """Between tokens on average; None where there was one at most."""


class IdentityStatistics(msgspec.Struct, frozen=True, gc=False):
    """One identity at one instant."""

    label: str
    running: int
    waiting: int
    generated: int
    """Tokens since the model was loaded, whatever became of the requests."""


@runtime_checkable
class KnowsIdentities(Protocol):
    """A queue, as far as it is asked whom it serves."""

    def identities(self) -> list[IdentityStatistics]:
        """Whoever waits or runs, and whoever had tokens; of very many the latest. Synchronous; about a microsecond each."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """`arrivals` = `completed` + `refused` + `cancelled` + `expired` + `failed` + `live`."""

    model: str
    arrivals: int
    completed: int
    refused: int
    cancelled: int
    expired: int
    failed: int
    live: int
    prompt_tokens: int
    generated_tokens: int
    step_running: bool
    gate: GateStatistics
    batch: BatchStatistics
    ended_at: float = 0.0
    """When the last request came to an end, on Trio's clock; 0 when none has."""
    positions_max: int = 0
    """Positions that all seats together may have; 0 where only the engine knows."""
    prefix: PrefixStatistics | None = None
    """Where states are reused."""
    seats: tuple[SeatStatistics, ...] = ()
    """The seats that are taken, the longest taken first, where a queue shows them: not of engines that run requests by themselves."""
    speculation: SpeculationStatistics | None = None
    """None where nothing is guessed."""
    emitted_tokens: int = 0
    """Generated since the model was loaded, also for requests that still run or came to nothing."""
    answers: tuple[AnswerFigures, ...] = ()
    """The latest complete answers, the oldest first."""
    quiet_seconds: float = 0.0
    """Since work that runs here has had a step, or a delegate's piece; 0 where nothing runs, and for what the device watches alone."""

    @property
    def state_share(self) -> float:
        """Part of the positions that are in use, 0 to 1."""
        return min(1.0, self.batch.positions / self.positions_max) if self.positions_max else 0.0
