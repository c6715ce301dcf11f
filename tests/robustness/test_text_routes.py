"""What a text may be asked for with, through every route that writes one, whole and streamed: refused before anything is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.serving import Answer, Server
from tests.robustness.routes import CONTEXT, ROUTES, Route, serving_small

each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
END = 256
"""The toy's end token."""


async def ask(server: Server, route: Route, *, stream: bool, text: str = "Hi", **fields: Any) -> Answer:
    return await server.ask(route.path, route.body(text, stream=stream, **fields))


def named(field: str, value: Any) -> dict[str, Any]:
    """One field, whose name depends on the route."""
    return {field: value}


async def assert_refused(server: Server, route: Route, param: str, *, code: str = "", **fields: Any) -> None:
    """400 with the field's name, whole and streamed, and nobody was seated for it."""
    for stream in (False, True):
        answer = await ask(server, route, stream=stream, **fields)
        error = route.error(answer)
        assert answer.status == 400, (route.path, fields, error)
        assert str(error["param"]).startswith(param), error
        assert not code or error["code"] == code
    assert server.actors.active() == 0


@each_route
async def test_an_empty_stop_string_is_refused(route: Route) -> None:
    async with serving_small() as server:
        for stop in ([""], ["a", ""], ["", "a"]):
            await assert_refused(server, route, route.stop, **named(route.stop, stop))


@each_route
async def test_a_seed_outside_64_bits_is_refused(route: Route) -> None:
    async with serving_small() as server:
        for seed in (2**64, -(2**63) - 1, 10**30):
            if "seed" in route.takes:
                await assert_refused(server, route, "seed", seed=seed)
            else:  # no field of this dialect
                answer = await ask(server, route, stream=False, seed=seed)
                assert (answer.status, answer.headers["x-tripower-ignored"]) == (200, "seed")


@each_route
async def test_more_answers_than_anybody_can_read_are_refused_at_once(route: Route) -> None:
    async with serving_small() as server:
        for n in (0, -1, 129, 10**6, 10**30):
            if "n" in route.takes:
                await assert_refused(server, route, "n", n=n)
            else:
                assert (await ask(server, route, stream=True, n=n)).headers["x-tripower-ignored"] == "n"


@pytest.mark.parametrize("n", [2, 5, 20])
@pytest.mark.parametrize("route", [route for route in ROUTES if "n" in route.takes], ids=["chat", "completions"])
async def test_more_answers_than_seats_wait_for_each_other(route: Route, n: int) -> None:  # BB-019
    async with serving_small(members_max=2) as server:
        whole = (await ask(server, route, stream=False, n=n, ignore_eos=True, temperature=1)).json
        events = (await ask(server, route, stream=True, n=n, ignore_eos=True, stream_options={"include_usage": True})).events
    assert [choice["index"] for choice in whole["choices"]] == list(range(n))
    ends = [choice["index"] for event in events[:-1] for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ends) == list(range(n))
    assert whole["usage"]["completion_tokens"] == events[-2]["usage"]["completion_tokens"] == 3 * n


@each_route
async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(route: Route) -> None:  # BB-043, BB-098
    async with serving_small() as server:
        for length in (CONTEXT + 1, 4 * CONTEXT, 100_000):
            for stream in (False, True):
                answer = await ask(server, route, stream=stream, text="a" * length)
                error = route.error(answer)
                assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", route.prompt)
                assert str(CONTEXT) in error["message"]
                assert any(int(number) >= length for number in digits(error["message"])), error["message"]


def digits(text: str) -> list[str]:
    return "".join(letter if letter.isdigit() else " " for letter in text).split()


@each_route
async def test_a_limit_larger_than_the_room_left_is_refused_or_where_the_dialect_says_so_reached(route: Route) -> None:
    async with serving_small() as server:
        for limit in (CONTEXT + 2, 10**6, 2**31 - 1):
            if "strict_room" in route.takes:
                await assert_refused(server, route, route.prompt, code="context_length_exceeded", **named(route.limit, limit))
            else:  # Anthropic's clients always send a limit, often their model's largest
                answer = await ask(server, route, stream=False, temperature=0, **named(route.limit, limit))
                assert route.reason(answer) in ("model_context_window_exceeded", "end_turn")


# BB-044
@pytest.mark.parametrize("text", ["", "a" * (CONTEXT // 2), "a" * (CONTEXT - 20)], ids=["empty", "half", "nearly full"])
@pytest.mark.parametrize(
    "never", [{"ignore_eos": True}, {"min_tokens": CONTEXT, "ignore_eos": True}], ids=["ignored", "banned"]
)
async def test_without_a_limit_and_an_end_token_an_answer_ends_where_the_context_does(never: Any, text: str) -> None:
    route = ROUTES[0]
    async with serving_small(members_max=1) as server:
        for stream in (False, True):
            body = route.body(text, stream=stream, **never) | {"max_tokens": None}
            answer = await server.ask(route.path, body)
            if stream:
                assert answer.events[-2]["choices"][0]["finish_reason"] == "length"
            else:
                assert route.reason(answer) == "length"
                assert answer.json["usage"]["total_tokens"] == CONTEXT + 1


@each_route
async def test_a_model_that_does_not_exist_is_404_and_never_another_one(route: Route) -> None:  # BB-107
    async with serving_small() as server:
        for model in ("none", "toy2", "TOY", "toy/", "../toy", "/etc/passwd", "x" * 10_000, "\u00e4"):
            for stream in (False, True):
                answer = await server.ask(route.path, route.body(stream=stream, model=model))
                error = route.error(answer)
                assert (answer.status, error["param"]) == (404, "model"), (model, error)


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/tokenize", "/detokenize", "/apply-template", "/models/load", "/models/unload"]
)
async def test_the_other_routes_say_the_same_of_it(path: str) -> None:  # BB-107
    fields = {"input": "a", "content": "a", "tokens": [1], "messages": [{"role": "user", "content": "a"}]}
    wanted = {"/v1/embeddings": "input", "/tokenize": "content", "/detokenize": "tokens", "/apply-template": "messages"}
    body = {wanted[path]: fields[wanted[path]]} if path in wanted else {}
    async with serving_small() as server:
        answer = await server.ask(path, body | {"model": "none"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@each_route
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"nan"', '"1"', "[1]", "true"])
async def test_what_is_no_finite_number_is_400_in_valid_json(route: Route, value: str) -> None:  # BB-103, BB-107
    async with serving_small() as server, server.client() as client:
        for field in ("temperature", "top_p", "top_k", route.limit):
            for stream in (False, True):
                plain = json.dumps(route.body(stream=stream, **named(field, 0)))
                body = plain.replace(f'"{field}": 0', f'"{field}": {value}').encode()
                assert value.encode() in body
                answer = await client.ask(route.path, body)
                assert answer.status == 400, (field, answer.body)
                assert route.error(answer)["message"]


@each_route
async def test_flags_as_text_and_values_of_other_types_are_400(route: Route) -> None:  # BB-107
    wrong: dict[str, tuple[Any, ...]] = {
        "stream": ("False", "true", 0, 1, []),
        route.limit: ("10", 1.5, [3], {}),
        route.prompt: (5, True, {}),
        route.stop: (5, [5], {}),
    }
    async with serving_small() as server:
        for field, values in wrong.items():
            for value in values:
                answer = await server.ask(route.path, route.body() | {field: value})
                assert answer.status == 400, (field, value, answer.body)
                assert str(route.error(answer)["param"]).startswith(field)
        assert (await server.ask(route.path, route.body(temperature=None, stream=None))).status == 200


@pytest.mark.parametrize("route", [route for route in ROUTES if "logit_bias" in route.takes], ids=["chat", "completions"])
async def test_a_bias_for_no_token_is_400_and_the_engine_goes_on(route: Route) -> None:  # BB-104
    async with serving_small() as server:
        for bias in ({"9999999": 1}, {"-1": 1}, {"abc": 1}, {"1": 1e9}, {"1": "x"}, {"257": 1}):
            await assert_refused(server, route, "logit_bias", logit_bias=bias)
        many = await ask(server, route, stream=True, logit_bias={str(token): 1.0 for token in range(100_000)})
        assert (many.status, route.error(many)["param"]) == (400, "logit_bias")
        assert (await ask(server, route, stream=False)).status == 200


@each_route
@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_that_passes_in_the_middle_ends_the_answer_and_frees_the_seat(route: Route, stream: bool) -> None:
    async with serving_small(source="toy:5000", context=8192, members_max=1) as server:
        body = route.body(stream=stream, **named(route.limit, 4000))
        body |= {"ignore_eos": True} if "ignore_eos" in route.takes else {}
        headers = {"x-tripower-deadline-ms": "60"}
        answer = await server.ask(route.path, body, headers=headers)
        if "ignore_eos" in route.takes:
            assert b"deadline_exceeded" in answer.body
            assert answer.status == (200 if stream else 504)
            assert stream or answer.headers["x-should-retry"] == "false"
        assert (await ask(server, route, stream=False)).status == 200


# A saved state whose name climbs out of its folder: nothing is saved, so no name of a file is ever taken.
@pytest.mark.parametrize("action", ["save", "restore", "erase"])
@pytest.mark.parametrize("name", ["a.bin", "../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd"])
async def test_no_route_takes_the_name_of_a_file(action: str, name: str) -> None:
    async with serving_small() as server:
        for path in (f"/slots/0?action={action}", f"/slots?action={action}", f"/slots/{name}"):
            answer = await server.ask(path, {"filename": name})
            assert answer.status in (404, 405), (path, answer)
        shown = await server.ask(f"/v1/models/{name}")
        assert (shown.status, shown.error["code"]) == (404, "model_not_found")
