"""The fuzz target itself: what it kept is replayed, and a short run finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tripower.bench import fuzz_gguf
from tripower.bench.gguf_mutation import seeds

CORPUS = Path(__file__).parent.parent / "backends" / "gguf_corpus"
FILES = sorted(path.name for path in CORPUS.glob("*.gguf"))
CORPUS_BYTES_MAX = 200 * 1024


@pytest.mark.parametrize("name", FILES)
def test_a_kept_file_still_has_its_outcome(name: str) -> None:
    outcomes = fuzz_gguf.exercise(CORPUS / name)
    expected = name.removesuffix(".gguf")
    if not expected.startswith(("failure-", "weights-")):  # those only have to be refused or accepted in order
        assert expected in outcomes


def test_the_corpus_has_every_refusal_of_the_reader_and_stays_small() -> None:
    codes = {name.removeprefix("reader-").removesuffix(".gguf") for name in FILES if name.startswith("reader-")}
    assert codes >= {
        "not_gguf", "unsupported_version", "split_file", "truncated", "limit_exceeded", "invalid_utf8", "bad_type", "bad_value",
        "duplicate", "unsupported_tensor_type", "misaligned", "overlap", "gap", "past_end",
    }  # fmt: skip
    assert sum((CORPUS / name).stat().st_size for name in FILES) < CORPUS_BYTES_MAX


@pytest.mark.parametrize("number", range(len(seeds())))
def test_an_unchanged_seed_is_accepted_by_the_reader(number: int, tmp_path: Path) -> None:
    assert "tensors-accepted" in fuzz_gguf.exercise_bytes(seeds()[number]().write(), tmp_path / "seed.gguf")


def test_seeds_with_a_vocabulary_are_accepted_whole(tmp_path: Path) -> None:
    whole = ["tensors-accepted", "text-accepted", "weights-accepted"]
    assert [fuzz_gguf.exercise_bytes(seed().write(), tmp_path / "seed.gguf") for seed in seeds()[3:]] == [whole] * 4


def test_a_thousand_changed_files_are_refused_or_accepted_in_order(tmp_path: Path) -> None:
    result = fuzz_gguf.run(1000, seed=20, corpus=tmp_path)
    assert result["failures"] == []
    assert sum(count for outcome, count in result["outcomes"].items() if outcome.startswith(("reader-", "tensors-"))) == 1000
    assert list(tmp_path.iterdir()) == []


def test_a_defect_is_found_and_its_file_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = iter([True])

    def broken(path: Path) -> list[str]:
        if next(warm_up, None) is None:
            raise ZeroDivisionError("seen")
        return []

    monkeypatch.setattr(fuzz_gguf, "exercise", broken)
    result = fuzz_gguf.run(2, seed=1, corpus=tmp_path)
    assert [line.startswith("ZeroDivisionError: seen: failure-") for line in result["failures"]] == [True, True]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_case_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = iter([True])

    def hanging(path: Path) -> list[str]:
        while next(warm_up, None) is None:
            pass
        return []

    monkeypatch.setattr(fuzz_gguf, "exercise", hanging)
    monkeypatch.setattr(fuzz_gguf, "CASE_SECONDS_MAX", 0.05)
    result = fuzz_gguf.run(1, seed=1, corpus=tmp_path)
    assert result["failures"][0].startswith("TooSlow")
