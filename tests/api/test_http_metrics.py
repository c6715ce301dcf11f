"""Metrics are what the actors publish, under stable names, in a form that strict parsers take."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.fake_runtime import HELLO, Script, failed
from tests.api.serving import ASK, CHAT, Answer, Server, serving, serving_toy
from tripower.api.http.figures import REQUEST_BUCKETS, Figures
from tripower.runtime.kernel import Overloaded

TOY = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "ignore_eos": True}


def samples(answer: Answer) -> dict[str, float]:
    """Every sample by its line without the value. Fails on anything that is not strictly right."""
    text = answer.body.decode()
    assert text.endswith("\n")
    kinds = Counter(tuple(line.split()[:3]) for line in text.splitlines() if line.startswith("#"))
    assert max(kinds.values()) == 1  # one HELP and one TYPE for each name
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("tripower_")
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found
            assert math.isfinite(sample.value) and sample.value >= 0
            found[key.removeprefix("tripower_")] = sample.value
    return found


async def scrape(server: Server) -> dict[str, float]:
    answer = await server.ask("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(answer)


async def test_metrics_parse_when_nothing_has_happened_and_when_something_has() -> None:  # BB-080
    async with serving_toy() as server:
        idle = await scrape(server)
        assert (await server.ask(CHAT, TOY)).status == 200
        assert (await server.ask(CHAT, TOY | {"stream": True})).status == 200
        busy = await scrape(server)
    assert set(idle) <= set(busy)
    assert idle["models_loaded"] == 1
    assert busy['requests_total{model="toy",outcome="completed"}'] == 2
    assert busy['inference_tokens_total{model="toy",type="output"}'] == 16
    assert busy['http_requests_total{method="POST",route="/v1/chat/completions",status="200"}'] == 2
    assert busy['ttft_seconds_count{model="toy"}'] == 2
    assert busy['gate_admitted_total{gate="model"}'] == 2
    assert busy["active_requests"] == busy["requests_waiting"] == busy["requests_running"] == 0
    assert busy['actor_restarts_total{actor="api"}'] == 0


async def test_no_figure_goes_down_but_gauges() -> None:
    async with serving_toy() as server:
        before = await scrape(server)
        for _ in range(3):
            await server.ask(CHAT, TOY)
            after = await scrape(server)
            falling = [key for key, value in before.items() if after[key] < value]
            assert all(not key.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket")) for key in falling)
            before = after


async def test_a_client_that_leaves_while_it_waits_leaves_the_gauges_at_zero() -> None:  # BB-079
    from tripower.actors.runtime import toy_plan

    async with serving_toy(toy_plan(members_max=1, source="toy:2000")) as server:
        clients = [await server.open_client() for _ in range(4)]
        for client in clients:
            await client.send_request(CHAT, TOY | {"max_tokens": 4000, "ignore_eos": True})
        while (found := await scrape(server))["requests_waiting"] < 3:
            pass
        assert found["requests_running"] == 1
        for client in clients:
            await client.stream.aclose()
        while (found := await scrape(server))["active_requests"]:
            pass
    assert found["requests_waiting"] == found["requests_running"] == 0
    assert found["requests_cancelled_total"] == 4
    assert found["http_disconnects_total"] == 4
    assert found['http_requests_total{method="POST",route="/v1/chat/completions",status="499"}'] == 4


async def test_answers_are_counted_by_route_and_status_and_unknown_names_make_no_series() -> None:
    scripts = (HELLO, Script(refusal=Overloaded("full")), Script([failed()]))
    async with serving(*scripts) as server:
        for _ in scripts:
            await server.ask(CHAT, ASK)
        for number in range(50):
            await server.ask(f"/v1/models/{number}")
            await server.ask(f"/{number}", method=f"VERB{number}")
        found = await scrape(server)
        assert server.statistics().by_class == (0, 2, 0, 100, 2)
    series = {key: value for key, value in found.items() if key.startswith("http_requests_total")}
    assert series == {
        'http_requests_total{method="GET",route="/v1/models/{id}",status="404"}': 50,
        'http_requests_total{method="other",route="unmatched",status="404"}': 50,
        'http_requests_total{method="POST",route="/v1/chat/completions",status="200"}': 1,
        'http_requests_total{method="POST",route="/v1/chat/completions",status="500"}': 1,
        'http_requests_total{method="POST",route="/v1/chat/completions",status="503"}': 1,
    }


async def test_a_name_with_odd_characters_is_escaped() -> None:
    name = 'a"b\\c\nd'
    async with serving(HELLO, models=(name,)) as server:
        assert (await server.ask(CHAT, ASK | {"model": name})).status == 200
        await scrape(server)


async def test_open_connections_and_requests_in_progress_are_gauges() -> None:
    async with serving(HELLO) as server, server.client() as client:
        await client.ask("/health")
        found = await scrape(server)
    assert found["http_connections"] == 2
    assert found["http_connections_accepted_total"] == 2
    assert found["http_requests_in_progress"] == 1  # the scrape itself


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (0.005, 0), (0.0051, 1), (300.0, 14), (1e9, 15)])
def test_a_duration_falls_into_the_bucket_whose_bound_it_does_not_exceed(seconds: float, bucket: int) -> None:
    figures = Figures()
    figures.count_answer("GET", "/", 200, seconds, left=False)
    statistics = figures.statistics(url="", draining=False, open_connections=0, active_requests=0, accepted_connections=0)
    (histogram,) = statistics.durations
    assert histogram.counts == tuple(int(place == bucket) for place in range(len(REQUEST_BUCKETS) + 1))
    assert histogram.total == seconds
