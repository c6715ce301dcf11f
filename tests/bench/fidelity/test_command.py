"""`tripower bench fidelity`: its report, its text, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tripower.bench.engines import open_engines
from tripower.bench.fidelity import command
from tripower.bench.fidelity.divergence import Fidelity
from tripower.bench.measured_model import describe_model
from tripower.bench.peers import registry
from tripower.runtime.kernel import InvalidConfiguration

Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("ours", "met"), [(0.001, True), (0.01, True), (0.02, False)])
def test_ours_may_not_diverge_more_than_the_peer(ours: float, met: bool) -> None:
    agrees = np.array([True, True, True, False])
    mine, theirs = (Fidelity(np.full(4, value), agrees) for value in (ours, 0.01))
    divergence, percentile, agreement = command.fidelity_cells(mine, theirs)
    assert (divergence.ok, divergence.target) == (met, "ratio <= 1")
    assert percentile.ok is None and agreement.ok is None
    assert (agreement.ours, agreement.peer, agreement.ratio) == (0.75, 0.75, 1.0)


def test_the_engine_and_the_reference_give_logits_of_the_same_tokens(tiny_gguf: Path) -> None:
    engines = open_engines(tiny_gguf, context=256, threads=1)
    tokens = engines.text.tokenize("hello")
    for engine in (engines.ours, engines.reference):
        engine.open_sequence(0)
    ours, reference = engines.ours.logits(0, tokens), engines.reference.logits(0, tokens)
    assert ours.shape == reference.shape == (len(tokens), 262)
    np.testing.assert_allclose(ours, reference, rtol=1e-3)


def test_the_text_is_long_enough_for_the_positions_that_are_compared() -> None:
    words = command.TEXT.read_text(encoding="utf-8").split()
    assert len(words) >= command.POSITIONS  # a word is a token at least


def test_a_text_that_is_too_short_is_refused(tiny_gguf: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="tokens of this model"):
        command.measure(describe_model(tiny_gguf), "hello", 300, 1, lambda text: None)


def test_without_llamacpp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    with pytest.raises(InvalidConfiguration, match=r"tripower\[llamacpp\]"):
        command.main(["--quick"])


@pytest.mark.long
def test_it_runs_and_reports(smollm2_path: Path, run_quick: Run) -> None:
    try:
        registry.check_peer("llamacpp")
    except InvalidConfiguration as missing:
        pytest.skip(str(missing))
    report = run_quick(command.main, ["--model", str(smollm2_path)])
    assert [cell["name"] for cell in report["cells"]] == [
        "KL divergence",
        "KL divergence, 99th percentile",
        "top-1 agreement",
    ]
    assert report["cells"][0]["peer"] > 0
    assert report["host"]["encoding"] == "Q4_1"
