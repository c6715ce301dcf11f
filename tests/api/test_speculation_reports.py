"""What is told of guesses: metrics by engine, model and strategy, llama-server's timings, and `tripower ps`."""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from trio.testing import MockClock

from tests.actors.rigs import complete, open_toy, queue_figures, warm_up
from tripower.actors.dialogue import GenerationFinished, Timings, Usage
from tripower.actors.queueing import QueueStatistics, SpeculationStatistics
from tripower.api.cli.ps import read_figures, shown
from tripower.api.http.answers import merged, timings_out
from tripower.api.http.speculation_metrics import speculation_metrics
from tripower.runtime.batching.batch import SpeculationCounts


async def queue() -> QueueStatistics:
    """A queue's figures, as if guesses had been evaluated."""
    async with open_toy() as (runtime, _):
        await warm_up(runtime)
        await complete(runtime)
        found = queue_figures(runtime)
    batch = msgspec.structs.replace(found.batch, speculation=SpeculationCounts(1, 4, 10, 12, 9, 19, 2))
    return msgspec.structs.replace(
        found, batch=batch, speculation=SpeculationStatistics("picolm", "ngram-context", 1.5, 0.25, 0.75, 3)
    )


def exposed(figures: QueueStatistics) -> str:
    class Told(Collector):
        def collect(self):  # type: ignore[no-untyped-def] # as the library has it
            return speculation_metrics([figures])

    registry = CollectorRegistry()
    registry.register(Told())
    return generate_latest(registry).decode()


async def test_counts_carry_the_engine_the_model_and_the_strategy(autojump_clock: MockClock) -> None:
    text = exposed(await queue())
    labels = '{backend="picolm",model="toy",strategy="ngram-context"}'
    for name, value in (
        ("requests_total", 1.0), ("rounds_total", 4.0), ("target_passes_total", 10.0), ("drafted_tokens_total", 12.0),
        ("accepted_tokens_total", 9.0), ("emitted_tokens_total", 19.0), ("decode_seconds_total", 1.5),
        ("replays_total", 2.0), ("fallbacks_total", 3.0),
    ):  # fmt: skip
        assert f"tripower_speculative_{name}{labels} {value}" in text
    for phase, seconds in (("draft", 0.25), ("verify", 0.75)):
        of_phase = f'backend="picolm",model="toy",phase="{phase}",strategy="ngram-context"'
        assert f"tripower_speculative_phase_seconds_total{{{of_phase}}} {seconds}" in text


async def test_a_queue_that_does_not_guess_has_no_sample(autojump_clock: MockClock) -> None:
    silent = msgspec.structs.replace(await queue(), speculation=None)
    assert 'model="toy"' not in exposed(silent)


async def test_ps_shows_what_a_pass_gives(autojump_clock: MockClock) -> None:
    metrics = exposed(await queue()) + "tripower_requests_running 0.0\ntripower_requests_waiting 0.0\n"
    model = {"id": "toy", "status": {"value": "loaded"}}
    figures = read_figures("http://here", {"status": "ok", "reasons": []}, {"data": [model]}, metrics)
    assert figures.models[0].tokens_per_pass == 1.9
    assert "PER PASS" in shown(figures) and " 1.9 " in shown(figures)
    assert "RIGHT" in shown(figures) and " 75% " in shown(figures)


async def test_ps_as_json_tells_what_guesses_took(autojump_clock: MockClock) -> None:
    metrics = exposed(await queue()) + "tripower_requests_running 0.0\ntripower_requests_waiting 0.0\n"
    model = {"id": "toy", "status": {"value": "loaded"}}
    [told] = read_figures("http://here", {"status": "ok", "reasons": []}, {"data": [model]}, metrics).models
    assert (told.right_share, told.replays, told.fallbacks) == (0.75, 2, 3)
    assert (told.draft_seconds, told.verify_seconds) == (0.25, 0.75)


def test_timings_tell_of_guesses_by_llama_servers_names_where_there_were_any() -> None:
    ends = [GenerationFinished("stop", "", Usage(3, 9), Timings(0, 1, 2, *counts)) for counts in ((6, 4, 5, 1), (0, 0, 3, 0))]
    told = msgspec.to_builtins(timings_out(ends[0]))
    assert (told["draft_n"], told["draft_n_accepted"], told["draft_passes"], told["draft_replays"]) == (6, 4, 5, 1)
    assert not {name for name in msgspec.to_builtins(timings_out(ends[1])) if name.startswith("draft_")}
    together = merged(ends, 2).timings
    assert (together.drafted, together.accepted, together.passes, together.replays) == (6, 4, 8, 1)
