"""What `/metrics` says, summed over labels."""

from __future__ import annotations

from tripower.bench.overload.figures import read_figures

TEXT = """# TYPE tripower_requests counter
tripower_requests_total{model="a",outcome="completed"} 3
tripower_requests_total{model="a",outcome="refused"} 2
tripower_requests_total{model="b",outcome="completed"} 5
# TYPE tripower_batch_rows counter
tripower_batch_rows_total{phase="prefill"} 90
tripower_batch_rows_total{phase="decode"} 7
# TYPE tripower_gate_active gauge
tripower_gate_active{gate="model"} 1
# TYPE tripower_requests_waiting gauge
tripower_requests_waiting 0
"""


def test_samples_are_summed_over_the_labels_that_are_not_asked_for() -> None:
    reading = read_figures(TEXT)
    assert reading.total("tripower_requests_total") == 10
    assert reading.total("tripower_requests_total", outcome="completed") == 8
    assert reading.outcomes("a") == {"completed": 3, "refused": 2, "cancelled": 0, "expired": 0, "failed": 0}
    assert reading.generated() == 7
    assert reading.total("no_such_sample") == 0


def test_what_is_not_at_rest_is_named() -> None:
    assert read_figures(TEXT).occupied() == {"tripower_gate_active": 1}
