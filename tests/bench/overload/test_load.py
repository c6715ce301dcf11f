"""What the overload report says of blocks and memory."""

from __future__ import annotations

import pytest

from tripower.bench.overload.load import growth, quoted
from tripower.bench.overload.service import WATCHER, WEIGHTS, key_entry, serve_command


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ([50.0], 0.0),
        ([50.0, 60.0], 0.0),
        ([50.0, 60.0, 61.0, 62.0], 1.0),
        ([50.0, 60.0, 90.0, 60.0, 60.0], 0.0),
        ([90.0, 50.0, 50.0, 50.0], 0.0),
    ],
)
def test_growth_counts_from_after_the_first_block_and_forgives_a_peak(memory: list[float], expected: float) -> None:
    assert growth(memory) == expected


def test_a_note_quotes_the_first_few() -> None:
    assert quoted([]) is None
    assert quoted(["a", "b", "c", "d"]) == "a; b; c"


def test_models_come_first_and_settings_behind_their_option() -> None:
    command = serve_command("toy:500", "crowd=toy", "engine.threads=1")
    assert command[3:6] == ["serve", "toy:500", "crowd=toy"]
    assert command[-2:] == ["--set", "engine.threads=1"]


def test_keys_have_their_weights_and_are_kept_as_hashes() -> None:
    assert "weight = 2.0" in key_entry("quiet-b", "secret")
    assert "weight = 1.0" in key_entry(WATCHER, "secret")
    assert "secret" not in key_entry("noisy", "secret")
    assert len(set(WEIGHTS.values())) > 2
