"""What a load measures and keeps: tiles, certificate, compiled code. Losing any of it costs time, and nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.backends.native.engine.rigs import same_bits, tokens_of
from tripower.backends.picolm.native import calibrate, certificate, compile
from tripower.backends.picolm.native.certificate import KeptCertificate, kept_certificates
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.picolm.native.kept import list_kept, read_kept, write_kept
from tripower.backends.picolm.native.linear_code import linear_code
from tripower.runtime.engine import Certificate

TOKENS = tokens_of(4, 30)


ALIVE: list[Any] = []
"""Code of these tests, kept as the process keeps all code."""


def forget_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had begun anew: whatever is compiled is looked for in the cache."""
    ALIVE.append({})
    monkeypatch.setattr(compile, "_LIVE", ALIVE[-1])
    linear_code.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, still empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRIPOWER_KERNEL_CACHE", str(folder))
    forget_code(monkeypatch)
    return folder


@pytest.fixture
def path(tiny_model: Any) -> Any:
    return tiny_model("llama", layers=1)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often something dear was done: `compile`, `calibrate`, `certify`."""
    counts = {"compile": 0, "calibrate": 0, "certify": 0}

    def counted(name: str, module: Any, attribute: str) -> None:
        original = getattr(module, attribute)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, attribute, call)

    counted("compile", compile, "_object_of")
    counted("calibrate", calibrate, "_best")
    counted("certify", certificate, "_measure")
    return counts


def logits(engine: NativeEngine) -> Any:
    engine.open_sequence(0)
    return engine.logits(0, TOKENS)


def files(folder: Path, ending: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(ending))


def test_a_load_certifies_every_row_count_up_to_the_batch_limit(path: Path, load_native: Any) -> None:
    engine = load_native(path, sequences_max=7)
    assert engine.info.certificate == Certificate(row_counts=7, positions=24, mismatches=0)
    assert engine.info.determinism == "exact" and engine.sequences() == []


@pytest.mark.parametrize("context", [1, 2, 6, 20])
def test_a_short_context_is_certified_as_far_as_it_goes(context: int, path: Path, load_native: Any) -> None:
    engine = load_native(path, context=context, sequences_max=3)
    assert engine.info.certificate == Certificate(row_counts=3, positions=max(context - 5, 1), mismatches=0)


def test_the_second_load_measures_nothing(path: Path, load_native: Any, work: dict[str, int]) -> None:
    first = load_native(path)
    assert work["certify"] == 1
    before = dict(work)
    second = load_native(path)
    assert work == before and second.info == first.info


def test_another_batch_limit_context_or_number_of_threads_is_certified_anew(
    path: Path, load_native: Any, work: dict[str, int]
) -> None:
    for number, changes in enumerate(({}, {"sequences_max": 5}, {"threads": 2}, {"context": 100}), 1):
        load_native(path, **changes)
        assert work["certify"] == number


def test_a_mismatch_makes_the_engine_numeric_and_is_remembered(
    path: Path, load_native: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = NativeEngine.batch_logits

    def wrong_in_company(engine: NativeEngine, rows: Any) -> Any:
        found = measure(engine, rows)
        if len(rows) >= 3:
            found[1, 5] = np.nextafter(found[1, 5], np.float32(np.inf))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(NativeEngine, "batch_logits", wrong_in_company)
        first = load_native(path)
    assert first.info.determinism == "numeric"
    assert first.info.certificate == Certificate(row_counts=4, positions=24, mismatches=2)
    assert load_native(path).info == first.info
    [kept] = kept_certificates()
    assert (kept.model, kept.certificate) == (path.name, first.info.certificate)


@pytest.mark.parametrize("call", ["in_one_piece", "after_a_prompt"])
def test_every_kind_of_company_is_compared(
    call: str, path: Path, load_native: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = getattr(certificate._Probe, call)
    monkeypatch.setattr(certificate._Probe, call, lambda *arguments: -measure(*arguments))
    assert load_native(path).info.determinism == "numeric"


@pytest.mark.parametrize(
    "damage",
    [None, *(pytest.param(damage, marks=pytest.mark.long) for damage in (b"", b"\0" * 64, b"\xff{"))],
    ids=["a flipped bit", "empty", "zeros", "rubbish"],
)
def test_damaged_files_are_made_anew(
    damage: bytes | None,
    path: Path,
    load_native: Any,
    cache: Path,
    work: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = logits(load_native(path))
    kept = files(cache, ".kept")
    assert len(kept) == 3 and files(cache, ".o")
    for each in cache.iterdir():
        content = bytearray(each.read_bytes())
        content[len(content) // 2] ^= 1
        each.write_bytes(bytes(content) if damage is None else damage)
    before = dict(work)
    forget_code(monkeypatch)
    engine = load_native(path)
    assert same_bits(logits(engine), expected) and engine.info.determinism == "exact"
    assert all(work[name] > before[name] for name in work)
    before = dict(work)
    forget_code(monkeypatch)
    assert load_native(path).info == engine.info and work == before


def test_what_is_kept_is_no_temporary_file(path: Path, load_native: Any, cache: Path) -> None:
    load_native(path)
    assert all(each.suffix in (".o", ".kept") for each in cache.iterdir())


def refuse(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "obstacle",
    [
        "os.replace",
        *(pytest.param(obstacle, marks=pytest.mark.long) for obstacle in ("a file in its place", "tempfile.mkstemp")),
    ],
)
def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(
    obstacle: str, path: Path, load_native: Any, cache: Path, work: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if obstacle == "a file in its place":
        cache.write_bytes(b"")
    else:
        monkeypatch.setattr(obstacle, refuse)
    first = load_native(path)
    forget_code(monkeypatch)
    second = load_native(path)
    assert work["certify"] == 2 and work["compile"] >= 4
    assert same_bits(logits(first), logits(second)) and kept_certificates() == []
    assert not cache.is_dir() or not list(cache.iterdir())


def test_without_a_home_nothing_is_kept(
    path: Path, load_native: Any, monkeypatch: pytest.MonkeyPatch, work: dict[str, int]
) -> None:
    monkeypatch.delenv("TRIPOWER_KERNEL_CACHE")

    def homeless(*arguments: Any) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("tripower.runtime.store.home_directory", homeless)
    for _ in range(2):
        assert load_native(path).info.determinism == "exact"
    assert work["certify"] == 2 and kept_certificates() == []


def test_kept_values_are_read_back_and_listed_by_the_beginning_of_their_names(cache: Path) -> None:
    assert list_kept("a-", list[int]) == [] and read_kept("a-1", list[int]) is None
    for name, value in (("a-2", [2]), ("a-1", [1]), ("b-1", [3]), ("a-3", "text")):
        write_kept(name, value)
    assert read_kept("a-2", list[int]) == [2]
    assert list_kept("a-", list[int]) == [[1], [2]]  # what is not of the kind is left out
    assert read_kept("a-3", list[int]) is None


def test_certificates_name_model_target_and_threads(path: Path, load_native: Any, cache: Path) -> None:
    engine = load_native(path, threads=2)
    [kept] = kept_certificates()
    assert isinstance(kept, KeptCertificate) and kept.certificate == engine.info.certificate
    assert (kept.model, kept.threads) == (path.name, 2)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=KeptCertificate) == kept
