"""The generated requests: reproducible, of every kind, and valid in between."""

from __future__ import annotations

import json
from random import Random

import pytest

from tripower.bench.fuzz_http.cases import Ending, is_well_framed, make_case
from tripower.bench.fuzz_http.documents import BODIES, VALUES, Twice, make_body, spoil_tree, write

ROUTES = [("GET", "/health"), *(("POST", path) for path in BODIES)]


def test_a_case_depends_on_its_seed_and_number_only() -> None:
    assert make_case(1, 7, ROUTES) == make_case(1, 7, ROUTES)
    assert len({make_case(1, number, ROUTES).data for number in range(300)}) > 250
    assert make_case(1, 7, ROUTES) != make_case(2, 7, ROUTES)


def test_every_route_is_asked_and_most_requests_wait_for_their_answer() -> None:
    cases = [make_case(3, number, ROUTES) for number in range(2000)]
    assert {path for _, path in ROUTES} <= {case.path for case in cases}
    waiting = sum(case.ending is Ending.WAITS for case in cases)
    assert 0.6 < waiting / len(cases) < 0.98


@pytest.mark.parametrize("path", sorted(BODIES))
def test_a_body_is_valid_now_and_then_and_spoilt_most_of_the_time(path: str) -> None:
    valid = [json.loads(json.dumps(body)) for body in BODIES[path]]
    found = [_loaded(make_body(path, Random(number))) in valid for number in range(200)]
    assert 20 < sum(found) < 100


def _loaded(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def test_raw_values_and_keys_that_are_there_twice_are_written_as_they_are() -> None:
    assert write(Twice([("a", 1), ("a", [None])])) == '{"a":1,"a":[null]}'
    written = [write(value) for value in VALUES]
    assert "1e999" in written and '"\\ud800"' in written and '"\\u0000"' in written


def test_spoiling_reaches_every_level() -> None:
    tree = {"a": {"b": [{"c": 1}]}}
    spoilt = {write(spoil_tree(tree, Random(number))) for number in range(300)}
    assert any('"c":' in each and '"c":1' not in each for each in spoilt)
    assert any(not each.startswith('{"a":{"b":') for each in spoilt)


@pytest.mark.parametrize(
    ("headers", "method", "path", "waits"),
    [
        ([], "GET", "/health", True),
        ([("x-request-id", "a")], "GET", "/health", True),
        ([("transfer-encoding", "gzip")], "POST", "/tokenize", False),
        ([("content-length", "5")], "POST", "/tokenize", False),
        ([], "G\x7fT", "/health", False),
        ([], "GET", "*", False),
        ([("host", "again")], "GET", "/health", False),
    ],
)
def test_an_answer_is_waited_for_where_the_requests_end_is_beyond_doubt(
    headers: list[tuple[str, str]], method: str, path: str, waits: bool
) -> None:
    usual = [("host", "127.0.0.1"), ("content-type", "application/json")]
    assert is_well_framed([*usual, *headers], method, path) is waits
