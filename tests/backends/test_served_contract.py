"""What every served model does, whatever runs it. A new engine is a line in `ENGINES`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.backends.served import SLOW_TOY, Engine, Served, behaviour
from tripower.actors.models import ModelCard
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest, Overloaded

ENGINES = [
    pytest.param(Engine("toy", SLOW_TOY), id="toy"),
    pytest.param(Engine("proxy", "proxy", ("min_p", 0.1)), id="proxy"),
    pytest.param(Engine("picolm", context=512), id="picolm"),
    pytest.param(Engine("llamacpp", context=512), id="llamacpp"),
    pytest.param(Engine("mistralrs", unsupported=("seed", 7)), id="mistralrs", marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine: Engine = request.param
    file: Path | None = None if engine.source else request.getfixturevalue("smollm2_path")
    with Served(engine, file, tmp_path_factory.mktemp("home")) as opened:
        yield opened
    assert not [thread for thread in threading.enumerate() if engine.name in thread.name]


@behaviour
async def test_the_card_says_who_runs_it(served: Served) -> None:
    (card,) = await served.runtime.models()
    assert isinstance(card, ModelCard) and (card.name, card.state, card.backend) == ("it", "loaded", served.engine.name)


@behaviour
async def test_a_conversation_is_answered_and_counted(served: Served) -> None:
    answer = await served.answer()
    assert answer.text and answer.pieces > 2
    assert answer.finished.usage.prompt_tokens > 4


@behaviour
async def test_max_tokens_bounds_the_answer(served: Served) -> None:
    for count in (1, 3):
        finished = (await served.answer(max_tokens=count)).finished
        assert (finished.reason, finished.usage.completion_tokens) == ("length", count)


@behaviour
async def test_greedy_answers_repeat(served: Served) -> None:
    assert (await served.answer()).text == (await served.answer()).text


@behaviour
async def test_answers_do_not_depend_on_who_is_served_beside_them(served: Served) -> None:
    alone = (await served.answer(max_tokens=6)).text
    texts = []

    async def ask() -> None:
        texts.append((await served.answer(max_tokens=6)).text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
    assert texts == [alone, alone]


@behaviour
async def test_the_text_ends_before_a_stop_string(served: Served) -> None:
    whole = (await served.answer(max_tokens=12)).text
    stop = whole[len(whole) // 2 :][:3]
    answer = await served.answer(max_tokens=12, stop=[stop])
    assert answer.text == whole[: whole.index(stop)] and answer.finished.reason == "stop"


@behaviour
async def test_a_plain_prompt_is_continued(served: Served) -> None:
    async with served.runtime.complete("it", "Once upon a", max_tokens=4, temperature=0.0, ignore_eos=True) as generation:
        text = "".join([event.text async for event in generation])
    assert text


@behaviour
async def test_who_leaves_in_the_middle_frees_the_seat(served: Served) -> None:
    cancelled = served.figures.cancelled
    for _ in range(3):
        async with served.ask(max_tokens=300) as generation:
            await generation.receive()
    await served.quiet()
    assert served.figures.cancelled == cancelled + 3
    assert (await served.answer(max_tokens=2)).text


@behaviour
async def test_a_cancellation_frees_the_seat(served: Served) -> None:
    with trio.CancelScope() as scope:
        async with served.ask(max_tokens=300) as generation:
            await generation.receive()
            scope.cancel()
            await generation.receive()
    assert scope.cancelled_caught
    await served.quiet()
    assert (await served.answer(max_tokens=2)).text


@behaviour
async def test_a_deadline_ends_the_answer(served: Served) -> None:
    expired = served.figures.expired
    with pytest.raises(DeadlineExceeded):
        await served.answer(max_tokens=300, timeout=0.3)
    await served.quiet()
    assert served.figures.expired == expired + 1
    assert (await served.answer(max_tokens=2)).text


@behaviour
async def test_a_full_room_refuses_and_says_when_to_come_back(served: Served) -> None:
    room = served.figures.gate.active_limit + served.figures.gate.waiting_limit
    async with trio.open_nursery() as nursery:
        for _ in range(room):
            nursery.start_soon(hold, served)
        await served.until(lambda: served.figures.live == room)
        with pytest.raises(Overloaded) as caught:
            await served.answer()
        nursery.cancel_scope.cancel()
    assert caught.value.code == "queue_full" and caught.value.retry_after


async def hold(served: Served) -> None:
    async with served.ask(max_tokens=300) as generation:
        async for _ in generation:
            continue


@behaviour
async def test_a_conversation_that_does_not_fit_is_refused(served: Served) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            await served.answer("word " * 9000)
        assert caught.value.code == "context_length_exceeded"
    assert (await served.answer(max_tokens=2)).text


@behaviour
async def test_what_the_engine_cannot_honour_is_refused_by_name(served: Served) -> None:
    name, value = served.engine.unsupported
    with pytest.raises(InvalidRequest, match=name) as caught:
        await served.answer(**{name: value})
    assert caught.value.param == name
    assert served.figures.live == 0
