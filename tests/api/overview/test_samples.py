"""What two samples of the counters say of the time between them."""

from __future__ import annotations

from tripower.api.http.figures import Figures
from tripower.api.overview.samples import Sample, Tally, refusals


def test_what_has_been_since() -> None:
    before = Sample(at=10, arrivals=4, models={"a": Tally(generated=100)}, identities={"": 100}, busy={"cpu0": 5.0})
    after = Sample(
        at=14,
        arrivals=6,
        models={"a": Tally(generated=140), "b": Tally(generated=7, evaluated=3)},
        identities={"": 120, "x": 27},
        busy={"cpu0": 8.0},
    )
    change = after.since(before)
    assert (change.seconds, change.arrivals, change.generated, change.evaluated) == (4, 2, 47, 3)
    assert change.of("b") == Tally(generated=7, evaluated=3) and change.of("never loaded") == Tally()
    assert change.identities == {"": 20, "x": 27}
    assert change.busy == {"cpu0": 0.75}


def test_counters_that_began_again_count_from_there() -> None:
    before = Sample(at=0, models={"a": Tally(generated=1000, reused=5)})
    after = Sample(at=1, models={"a": Tally(generated=30, reused=9)})
    assert after.since(before).of("a") == Tally(generated=30, reused=4)


def test_a_model_that_has_gone_has_done_nothing() -> None:
    assert Sample(at=1).since(Sample(at=0, models={"a": Tally(generated=9)})).generated == 0


def test_refusals_are_those_of_work_not_of_probes() -> None:
    figures = Figures()
    for method, route, status in (
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 429),
        ("POST", "/v1/completions", 503),
        ("POST", "/v1/completions", 404),
        ("GET", "/ready", 503),
        ("GET", "/health", 503),
    ):
        figures.count_answer(method, route, status, 0.1, left=False)
    border = figures.statistics(url="", draining=False, open_connections=0, active_requests=0, accepted_connections=0)
    assert refusals(border) == 2
