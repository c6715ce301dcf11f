"""What must hold after every run, whatever went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tripower.actors.device import DeviceStatistics
from tripower.actors.dialogue import PromptScored, TokenChunk
from tripower.actors.queueing import QueueStatistics
from tripower.actors.simulation.scenario import Caller
from tripower.backends.toy import ToyEngine
from tripower.backends.toy.engine import END, VOCABULARY, absorb, draw, draw_key, toy_logits
from tripower.runtime.engine import SamplingParameters
from tripower.runtime.kernel import ActorStatistics


def expected_tokens(caller: Caller) -> list[int]:
    """What a toy alone answers: the streamed tokens, without the end token."""
    key = draw_key(SamplingParameters(temperature=caller.temperature, seed=caller.seed))
    state = 0
    for token in caller.prompt.encode():
        state = absorb(state, token)
    tokens: list[int] = []
    ends = {caller.stop_token} | (set() if caller.ignore_eos else {END})
    while len(tokens) < caller.max_tokens:
        token = draw(state, key)
        if token in ends and len(tokens) < caller.min_tokens:
            logits = toy_logits(state)
            token = max((each for each in range(VOCABULARY) if each not in ends), key=lambda each: logits[each])
        if token in ends:
            break
        tokens.append(token)
        state = absorb(state, token)
    return tokens


def check_answer(caller: Caller, tokens: list[int], *, complete: bool) -> Iterator[str]:
    """Every token is the one that the caller would have got alone; none is missing in front, none is doubled."""
    expected = expected_tokens(caller)
    if complete and tokens != expected:
        yield f"caller {caller.number} completed with {tokens} instead of {expected}"
    elif tokens != expected[: len(tokens)]:
        yield f"caller {caller.number} got {tokens}, which is no beginning of {expected}"


def check_reports(caller: Caller, tokens: list[int], event: TokenChunk | PromptScored) -> Iterator[str]:
    """What was asked to be told is told, of the right tokens, and of the prompt before the answer. `tokens` came before `event`."""
    match event:
        case TokenChunk():
            told = None if event.logprobs is None else event.logprobs.token
            if told != (event.token if caller.wants_reports else None):
                yield f"caller {caller.number} got {event.token} and was told of {told}"
        case PromptScored():
            if tokens or bytes(each.token for each in event.tokens) != caller.prompt.encode()[1:]:
                yield f"caller {caller.number} was told of {event.tokens} after {tokens}"


def check_reuse(caller: Caller, reused: int, others: Sequence[Caller]) -> Iterator[str]:
    """Nobody reuses more than `others`, all of the same identity, have sent or may have been answered."""
    prompt = list(caller.prompt.encode())
    longest = max((_common(prompt, [*each.prompt.encode(), *expected_tokens(each)]) for each in others), default=0)
    if reused > longest or (caller.wants_reports and reused):
        yield f"caller {caller.number} reused {reused} tokens; its identity has sent {longest} of them"


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    return next(
        (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), min(len(left), len(right))
    )


def check_quiet(actors: Sequence[ActorStatistics], engines: Sequence[ToyEngine]) -> Iterator[str]:
    """Nobody asks any more: nothing is queued, held or running, and all counters add up."""
    for actor in actors:
        yield from _check_actor(actor)
        if isinstance(actor.details, QueueStatistics):
            yield from _check_queue(actor.details)
        if isinstance(actor.details, DeviceStatistics) and (actor.details.jobs or actor.details.state != "idle"):
            yield f"{actor.name} is {actor.details.state} with {actor.details.jobs} jobs"
    for engine in engines:
        if engine.sequences():
            yield f"an engine holds {engine.sequences()} although nobody asks"


def _check_actor(actor: ActorStatistics) -> Iterator[str]:
    if actor.inbox or actor.waiting or actor.control or actor.pending:
        yield f"{actor.name} still has messages: {actor}"
    ended = actor.handled + actor.refused + actor.expired + actor.abandoned + actor.gone
    if actor.received != ended:
        yield f"{actor.name} received {actor.received} messages and ended {ended}"


def _check_queue(queue: QueueStatistics) -> Iterator[str]:
    ends = queue.completed + queue.refused + queue.cancelled + queue.expired + queue.failed
    if queue.live or queue.arrivals != ends:
        yield f"{queue.model}: {queue.arrivals} arrivals, {ends} ends, {queue.live} live"
    gate, batch = queue.gate, queue.batch
    if gate.active or gate.waiting or batch.members or queue.step_running:
        yield f"{queue.model} holds permits or rows: {gate} {batch}"
    if gate.arrivals != gate.admitted + gate.rejections + gate.cancelled_waiters + gate.expirations:
        yield f"the gate's counters do not add up: {gate}"
    if batch.joined != batch.finished + batch.left + batch.failed or batch.joined != gate.admitted:
        yield f"the batch's counters do not add up: {batch} {gate}"
