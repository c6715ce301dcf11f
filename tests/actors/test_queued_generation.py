"""What one request hears from its queue beside its tokens, on virtual time: progress, log probabilities, and by what it ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

import attrs
import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.actors.rigs import RecordingBackend, assert_quiet, greedy, open_toy, queue_figures, warm_up
from tests.constraints import Broken, Script
from tripower.actors.dialogue import (
    Failed,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    PromptProgress,
    PromptScored,
    TokenChunk,
)
from tripower.actors.models import LoadLimits
from tripower.actors.queued_generation import PROGRESS_PARTS
from tripower.actors.queueing import PROMPT_EVENTS_MAX, AnswerParts, Generate, QueueLimits, outlet_room
from tripower.actors.runtime import Runtime
from tripower.backends.row_reports import Wanted, report_row
from tripower.backends.toy.engine import END, VOCABULARY, absorb, draw, toy_logits
from tripower.runtime.engine import Constraint, RowReport, SamplingParameters, StepRow, TokenLogprobs
from tripower.runtime.kernel import InvalidRequest, Outlet

GREEDY = SamplingParameters(temperature=0.0)
PROMPT = tuple(b"hello")


@attrs.define
class Heard:
    """All events of one request."""

    events: list[GenerationEvent] = attrs.Factory(list)

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.of(TokenChunk)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if not isinstance(event, Failed))

    @property
    def end(self) -> Any:
        assert isinstance(self.events[-1], GenerationFinished | Failed)
        return self.events[-1]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def ask(runtime: Runtime, message: Generate, constraint: Constraint | None = None) -> Heard:
    """Take a seat; what is heard fills in as time passes. The outlet has the room that it would have, and no more."""
    outlet: Outlet[GenerationEvent] = Outlet(outlet_room(message.max_tokens))
    queue = (await runtime.load("toy")).queue
    await queue.ask(message, live=AnswerParts(outlet, constraint))
    heard = Heard()
    _outlets.append((outlet, heard))
    return heard


_outlets: list[tuple[Outlet[GenerationEvent], Heard]] = []


@pytest.fixture(autouse=True)
def nobody_else() -> None:
    """A test that failed leaves nobody to listen to."""
    _outlets.clear()


async def hear(seconds: float = 400) -> None:
    """Let time pass, and listen to everybody."""
    await trio.sleep(seconds)
    while _outlets:
        outlet, heard = _outlets.pop()
        heard.events += await outlet.receive()


def rows(rows_max: int, *, members_max: int = 4, steps_per_job: int = 256) -> LoadLimits:
    """Limits of a plan in which a step evaluates few rows."""
    queue = QueueLimits(members_max=members_max, waiting_max=8, steps_per_job=steps_per_job, rows_max=rows_max)
    return LoadLimits(context=0, state_bytes_max=1 << 30, threads=1, queue=queue)


async def heard_alone(message: Generate, constraint: Constraint | None = None, *, rows_max: int = 256) -> Heard:
    async with open_toy(limits=rows(rows_max)) as (runtime, backend):
        await warm_up(runtime)
        heard = await ask(runtime, message, constraint)
        await hear()
        await assert_quiet(runtime, backend)
        return heard


def reported(state: int, following: int, top: int) -> TokenLogprobs:
    report = RowReport()
    row = StepRow(0, 0, (0,), False, prompt_logprobs=top, report=report)
    report_row(toy_logits(state), Wanted(0, 0, following, False), row, -1)
    return report.prompt[0]


def scored(prompt: Sequence[int], top: int) -> list[TokenLogprobs]:
    """What the toy thinks of a prompt."""
    found, state = [], 0
    for token, following in pairwise(prompt):
        state = absorb(state, token)
        found.append(reported(state, following, top))
    return found


async def test_a_token_that_the_caller_named_ends_the_text_and_is_no_part_of_it(autojump_clock: MockClock) -> None:
    free = greedy("hello", 8)
    heard = await heard_alone(Generate(PROMPT, 8, GREEDY, ignore_eos=True, stop_token_ids=(free[4], 200)))
    place = free.index(free[4])
    assert heard.tokens == free[:place] and heard.text == bytes(free[:place]).decode()
    assert (heard.end.reason, heard.end.stopped_by) == ("stop", free[4])
    assert heard.end.usage.completion_tokens == place + 1  # the token that ended the text counts


async def test_the_models_own_end_is_nobodys_stop_token_and_a_stop_string_is_named(autojump_clock: MockClock) -> None:
    prompt = next(p for p in map(str, range(9999)) if END in greedy(p, 40))
    ended = await heard_alone(Generate(tuple(prompt.encode()), 60, GREEDY))
    assert (ended.end.reason, ended.end.stopped_by) == ("stop", None)
    named = await heard_alone(Generate(tuple(prompt.encode()), 60, GREEDY, stop_token_ids=(END,)))
    assert (named.end.stopped_by, named.tokens) == (END, ended.tokens)
    stop = bytes(greedy("hello", 6)[3:6]).decode()
    stopped = await heard_alone(Generate(PROMPT, 20, GREEDY, stop=("~~", stop)))
    assert (stopped.end.reason, stopped.end.stopped_by) == ("stop", stop) and stop not in stopped.text


async def test_a_control_token_that_is_part_of_the_text_is_spelt_out(autojump_clock: MockClock) -> None:
    prompt = tuple(next(p for p in map(str, range(9999)) if END in greedy(p, 40)).encode())
    silent = await heard_alone(Generate(prompt, 40, GREEDY, ignore_eos=True))
    shown = await heard_alone(Generate(prompt, 40, GREEDY, ignore_eos=True, visible=frozenset({END})))
    assert silent.tokens == shown.tokens and "<end>" not in silent.text
    assert shown.text.replace("<end>", "") == silent.text and shown.text.count("<end>") == silent.tokens.count(END) > 0


async def test_no_end_comes_before_the_shortest_answer(autojump_clock: MockClock) -> None:
    prompt = next(p for p in map(str, range(9999)) if END in greedy(p, 10))
    short = await heard_alone(Generate(tuple(prompt.encode()), 30, GREEDY))
    sampling = msgspec.structs.replace(GREEDY, banned=(END,), banned_until=12)
    longer = await heard_alone(Generate(tuple(prompt.encode()), 30, sampling))
    assert len(short.tokens) < 10 and short.end.reason == "stop"
    assert len(longer.tokens) >= 12 and longer.tokens[: len(short.tokens)] == short.tokens


async def test_log_probabilities_come_with_their_tokens_and_a_prompts_before_the_first(autojump_clock: MockClock) -> None:
    prompt = tuple(b"a prompt in many chunks")
    heard = await heard_alone(Generate(prompt, 3, GREEDY, ignore_eos=True, logprobs=2, prompt_logprobs=1), rows_max=4)
    assert [type(event) for event in heard.events] == [
        GenerationStarted, PromptScored, TokenChunk, TokenChunk, TokenChunk, GenerationFinished,
    ]  # fmt: skip
    assert heard.events[1] == PromptScored(tuple(scored(prompt, 1)))
    chunks = heard.of(TokenChunk)
    assert [chunk.logprobs.token for chunk in chunks] == heard.tokens
    assert all(len(chunk.logprobs.top) == 2 and chunk.logprobs.top[0][0] == chunk.token for chunk in chunks)


@pytest.mark.parametrize("prompt", [b"x", b"some more"])
async def test_a_prompt_is_scored_also_where_nothing_is_generated(autojump_clock: MockClock, prompt: bytes) -> None:
    heard = await heard_alone(Generate(tuple(prompt), 0, GREEDY, prompt_logprobs=0, progress=True), rows_max=4)
    assert heard.of(PromptScored) == [PromptScored(tuple(scored(prompt, 0)))]
    assert heard.of(PromptProgress)[-1].processed == len(prompt) and not heard.tokens
    assert (heard.end.reason, heard.end.usage.prompt_tokens) == ("length", len(prompt))


async def test_a_retry_tells_of_no_token_twice(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = tuple(b"a prompt in some chunks")
    async with open_toy(limits=rows(4, steps_per_job=2)) as (runtime, backend):
        await warm_up(runtime)
        tries, step = count(), backend.engine.step

        def sometimes(rows: Sequence[StepRow]) -> list[int]:
            backend.engine.failing = next(tries) in (1, 3, 6)
            return step(rows)

        monkeypatch.setattr(backend.engine, "step", sometimes)
        heard = await ask(runtime, Generate(prompt, 2, GREEDY, ignore_eos=True, prompt_logprobs=0, logprobs=0))
        await hear()
        assert queue_figures(runtime).batch.aborted_jobs == 3
        await assert_quiet(runtime, backend)
    assert heard.of(PromptScored) == [PromptScored(tuple(scored(prompt, 0)))]
    assert heard.tokens == greedy("a prompt in some chunks", 2)


async def test_progress_is_told_as_the_prompt_is_evaluated_and_never_more_often_than_there_is_room(
    autojump_clock: MockClock,
) -> None:
    prompt = tuple(b"x" * 300)
    heard = await heard_alone(Generate(prompt, 1, GREEDY, ignore_eos=True, progress=True, prompt_logprobs=0), rows_max=1)
    told = heard.of(PromptProgress)
    assert len(told) == PROGRESS_PARTS and len(told) + len(heard.of(PromptScored)) < PROMPT_EVENTS_MAX
    assert [event.processed for event in told] == sorted({event.processed for event in told})
    assert told[-1].processed == 300 and {(event.total, event.cached) for event in told} == {(300, 0)}
    assert all(event.seconds - event.processed in (0, 1) for event in told)  # a second a row here, and one between two jobs
    assert heard.events.index(told[-1]) < heard.events.index(heard.of(TokenChunk)[0])


async def test_what_nobody_asked_for_is_not_told(autojump_clock: MockClock) -> None:
    heard = await heard_alone(Generate(PROMPT, 2, GREEDY, ignore_eos=True), rows_max=1)
    assert {type(event) for event in heard.events} == {GenerationStarted, TokenChunk, GenerationFinished}
    assert all(chunk.logprobs is None for chunk in heard.of(TokenChunk))


@pytest.mark.parametrize("make", [lambda: Script([[97], []], VOCABULARY), Broken], ids=["nothing allowed", "fails"])
async def test_a_constraint_that_allows_nothing_fails_its_own_request_and_no_other(
    autojump_clock: MockClock, make: Any
) -> None:
    async with open_toy() as (runtime, backend):
        await warm_up(runtime)
        held = await ask(runtime, Generate(PROMPT, 5, GREEDY, ignore_eos=True), make())
        free = await ask(runtime, Generate(tuple(b"free"), 5, GREEDY, ignore_eos=True))
        await hear()
        assert isinstance(held.end, Failed) and (held.end.code, held.end.status) == ("format_exhausted", 400)
        assert free.tokens == greedy("free", 5) and free.end.reason == "length"
        figures = queue_figures(runtime)
        assert (figures.failed, figures.completed, figures.batch.aborted_jobs) == (1, 1, 0)
        await assert_quiet(runtime, backend)


async def test_a_constraint_holds_over_jobs_and_errors_of_the_device(autojump_clock: MockClock) -> None:
    script = Script([[token] for token in b'{"a":1}'] + [[END]], VOCABULARY)
    async with open_toy(steps_per_job=2) as (runtime, backend):
        await warm_up(runtime)
        heard = await ask(runtime, Generate(PROMPT, 20, GREEDY), script)
        await trio.sleep(3.5)
        backend.engine.failing = 1
        await hear()
        await assert_quiet(runtime, backend)
    assert heard.text == '{"a":1}' and heard.end.reason == "stop" and bytes(script.accepted) == b'{"a":1}'


class Helpless(RecordingBackend):
    """Its engines can nothing but draw."""

    def load(self, *arguments: Any) -> Any:
        for loaded in super().load(*arguments):
            if loaded is not None:
                able = frozenset({"format", "logprobs", "prompt_logprobs", "min_tokens"})
                loaded.engine.info = msgspec.structs.replace(loaded.engine.info, unsupported=able)
            yield loaded


@pytest.mark.parametrize(
    ("message", "constraint", "param", "code"),
    [
        (Generate(PROMPT, 1, GREEDY, stop_token_ids=(VOCABULARY,)), None, "stop_token_ids", "invalid_value"),
        (Generate(PROMPT, 1, GREEDY, stop_token_ids=(1, -1)), None, "stop_token_ids", "invalid_value"),
        (Generate(PROMPT, 1, GREEDY, logprobs=21), None, "logprobs", "invalid_value"),
        (Generate(PROMPT, 1, GREEDY, prompt_logprobs=-2), None, "prompt_logprobs", "invalid_value"),
        (Generate(PROMPT, 1, GREEDY, logprobs=0), None, "logprobs", "unsupported_by_engine"),
        (Generate(PROMPT, 1, GREEDY, prompt_logprobs=5), None, "prompt_logprobs", "unsupported_by_engine"),
        (Generate(PROMPT, 1, GREEDY), Script([], 1), "format", "unsupported_by_engine"),
        (Generate(PROMPT, 1, SamplingParameters(banned=(1,), banned_until=2)), None, "min_tokens", "unsupported_by_engine"),
    ],
)
async def test_what_an_engine_cannot_do_is_refused_by_name_before_there_is_a_seat(
    autojump_clock: MockClock, message: Generate, constraint: Constraint | None, param: str, code: str
) -> None:
    async with open_toy(Helpless()) as (runtime, backend):
        await warm_up(runtime)
        with pytest.raises(InvalidRequest) as caught:
            await ask(runtime, message, constraint)
        assert (caught.value.param, caught.value.code) == (param, code)
        await assert_quiet(runtime, backend)


MEMBERS = st.fixed_dictionaries(
    {
        "prompt": st.text("abc", min_size=1, max_size=12),
        "max_tokens": st.integers(0, 8),
        "held": st.booleans(),
        "message": st.fixed_dictionaries(
            {
                "ignore_eos": st.booleans(),
                "logprobs": st.sampled_from([-1, 0, 2]),
                "prompt_logprobs": st.sampled_from([-1, 1]),
                "stop_token_ids": st.sampled_from([(), tuple(b"abcdef")]),
                "progress": st.booleans(),
            }
        ),
        "banned": st.integers(0, 6),
        "seed": st.integers(0, 3),
    }
)


def toy_alone(member: dict[str, Any]) -> list[int]:
    """The tokens before the end that one of `MEMBERS` gets from the toy."""
    state, tokens = 0, list[int]()
    ends = {*member["message"]["stop_token_ids"], *(() if member["message"]["ignore_eos"] else (END,))}
    for token in member["prompt"].encode():
        state = absorb(state, token)
    while len(tokens) < member["max_tokens"]:
        allowed = {*b"uvwxyz", END} if member["held"] else set(range(VOCABULARY))
        if len(tokens) < member["banned"]:
            allowed -= {END, *b"abcdef"}
        token = draw(state, member["seed"] * 0x9E3779B97F4A7C15)
        if token not in allowed:
            logits = toy_logits(state)
            token = max(sorted(allowed), key=lambda each: logits[each])
        if token in ends:
            break
        tokens.append(token)
        state = absorb(state, token)
    return tokens


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=st.lists(MEMBERS, min_size=1, max_size=5), rows_max=st.integers(3, 12))
def test_any_mixture_of_members_keeps_each_ones_tokens_as_alone(members: list[dict[str, Any]], rows_max: int) -> None:
    async def run() -> None:
        async with open_toy(limits=rows(rows_max, steps_per_job=5)) as (runtime, backend):
            await warm_up(runtime)
            heard = []
            for member in members:
                sampling = SamplingParameters(
                    temperature=1.0, seed=member["seed"], banned=(END, *b"abcdef"), banned_until=member["banned"]
                )
                message = Generate(tuple(member["prompt"].encode()), member["max_tokens"], sampling, **member["message"])
                constraint = Script([{*b"uvwxyz", END}], VOCABULARY, repeat=True) if member["held"] else None
                heard.append(await ask(runtime, message, constraint))
                await trio.sleep(0.7)
            await hear()
            await assert_quiet(runtime, backend)
        for member, each in zip(members, heard, strict=True):
            assert each.tokens == toy_alone(member) and isinstance(each.end, GenerationFinished)
            wanted = member["message"]["prompt_logprobs"]
            prompt = member["prompt"].encode()
            assert each.of(PromptScored) == ([PromptScored(tuple(scored(prompt, wanted)))] if wanted >= 0 else [])

    trio.run(run, clock=MockClock(autojump_threshold=0))
