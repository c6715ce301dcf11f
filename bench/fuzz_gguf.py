"""Fuzzes everything that is built from a model file before it is trusted: reader, tokenizer, template, decoder.

    python -m tripower.bench.fuzz_gguf --cases 200000 --seed 1 --corpus tests/backends/gguf_corpus [--keep]

Each case is a valid small file, changed. The only things that may happen are success and `ModelRefused`; any other exception, a
case that takes too long, and one that lets memory grow are failures, whose file is kept in the corpus. With `--keep` the corpus
also gets the smallest file seen for each kind of refusal. The test suite replays the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tripower.backends.gguf.dequantise import dequantise
from tripower.backends.gguf.reader import GgufFile, open_gguf
from tripower.backends.gguf.types import DEQUANTISABLE
from tripower.backends.picolm.architectures import find_architecture
from tripower.backends.picolm.weights import check_weights
from tripower.backends.text.layer import GgufTextLayer
from tripower.bench.gguf_mutation import mutate, seeds
from tripower.bench.host import describe_host
from tripower.bench.schema import Target, add_report_options, finish, make_report, single_cell
from tripower.runtime.engine.contract import ChatMessage
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused

CASE_SECONDS_MAX = 5.0
GROWTH_BYTES_MAX = 64 * 2**20
DEQUANTISED_BYTES_MAX = 64 * 1024
SAMPLE_TEXT = "héllo 12 <|im_end|>\n 'tis"


class TooSlow(BaseException):
    """A case ran into its time limit. No `Exception`, so that nothing under test can swallow it."""


def run(cases: int, seed: int, corpus: Path, *, keep: bool = False) -> dict[str, Any]:
    """Run that many cases; blocks for about two milliseconds each.

    Answers `cases`, `outcomes` (a count for each kind), `failures` (a line each), `slowest_seconds` and `growth_bytes`, the peak
    of resident memory gained over the run.
    """
    rng = Random(seed)
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    slowest = 0.0
    smallest = {path.stem: path.stat().st_size for path in corpus.glob("*.gguf")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.gguf"
        exercise_bytes(seeds()[3]().write(), path)  # imports and caches are not the first case's fault
        first_peak = _peak_bytes()
        for _ in range(cases):
            data = mutate(rng.choice(seeds())(), rng)
            peak, begin = _peak_bytes(), time.perf_counter()
            found, failure = _outcomes(data, path)
            seconds = time.perf_counter() - begin
            slowest = max(slowest, seconds)
            if failure is None and _peak_bytes() - peak > GROWTH_BYTES_MAX:
                failure = f"memory grew by {(_peak_bytes() - peak) // 2**20} MiB"
            if failure is not None:
                failures.append(f"{failure}: {_save(corpus, data, None)}")
            outcomes.update(found)
            for outcome in found if keep and failure is None else ():
                if len(data) < smallest.get(outcome, 2**30):
                    smallest[outcome] = len(data)
                    _save(corpus, data, outcome)
    return {
        "cases": cases,
        "outcomes": dict(sorted(outcomes.items())),
        "failures": failures,
        "slowest_seconds": slowest,
        "growth_bytes": _peak_bytes() - first_peak,
    }


def exercise_bytes(data: bytes, path: Path) -> list[str]:
    path.write_bytes(data)
    return exercise(path)


def exercise(path: Path) -> list[str]:
    """Open a file and build all that is built from it; answers what each part said, `accepted` or the code of its refusal.

    Raises whatever else happens: that is a defect.
    """
    try:
        file = open_gguf(path)
    except ModelRefused as error:
        return [_described("reader", error)]
    with file:
        outcomes = []
        for part, use in (("tensors", _use_tensors), ("text", _use_text), ("weights", _use_weights)):
            try:
                use(file)
                outcomes.append(f"{part}-accepted")
            except ModelRefused as error:
                outcomes.append(_described(part, error))
        return outcomes


def _described(part: str, error: ModelRefused) -> str:
    assert error.param, f"{error.code} names no field"
    assert len(error.message) < 1000, f"{error.code} has a message of {len(error.message)} characters"
    return f"{part}-{error.code}"


def _use_tensors(file: GgufFile) -> None:
    for name, tensor in file.tensors.items():
        data = file.data(name)
        assert len(data) == tensor.nbytes and int(data[0]) + int(data[-1]) >= 0
        if tensor.nbytes <= DEQUANTISED_BYTES_MAX and tensor.type_name in DEQUANTISABLE:
            assert dequantise(file, name).shape == tensor.shape


def _use_text(file: GgufFile) -> None:
    layer = GgufTextLayer(file)
    tokens = layer.tokenize(SAMPLE_TEXT, parse_special=True)
    b"".join(map(layer.piece, tokens)).decode(errors="replace")
    with suppress(InvalidRequest):  # no template, or one that fails: a matter of requests
        layer.render_chat([ChatMessage("user", SAMPLE_TEXT)])


def _use_weights(file: GgufFile) -> None:
    architecture = find_architecture(file)
    check_weights(file, tuple(architecture.wanted(architecture.read_decoder(file))))


def _outcomes(data: bytes, path: Path) -> tuple[list[str], str | None]:
    """What the parts said, and what went wrong if anything did."""
    try:
        with _time_limit():
            return exercise_bytes(data, path), None
    except (Exception, TooSlow) as error:  # noqa: BLE001  # whatever it is, it is a finding
        return ["failure"], f"{type(error).__name__}: {str(error)[:200]}"


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `TooSlow` in the main thread when a case takes too long; elsewhere there is no way to."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {CASE_SECONDS_MAX:g} seconds")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _save(corpus: Path, data: bytes, outcome: str | None) -> str:
    corpus.mkdir(parents=True, exist_ok=True)
    name = outcome or f"failure-{hashlib.sha256(data).hexdigest()[:12]}"
    (corpus / f"{name}.gguf").write_bytes(data)
    return name


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tripower bench fuzz-gguf", description="fuzz the GGUF reader and what is built from model files"
    )
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=Path("tests/backends/gguf_corpus"))
    parser.add_argument("--keep", action="store_true", help="keep the smallest file for each kind of refusal")
    add_report_options(parser)
    options = parser.parse_args(argv)
    begin = time.perf_counter()
    result = run(options.cases, options.seed, options.corpus, keep=options.keep)
    failures = result["failures"]
    cells = [
        single_cell("cases", result["cases"], unit="files", note=f"seed {options.seed}, {time.perf_counter() - begin:.0f} s"),
        single_cell(
            "failures", len(failures), unit="files", target=Target("ours", "<=", 0), note="; ".join(failures[:20]) or None
        ),
        single_cell("slowest case", result["slowest_seconds"], unit="s", target=Target("ours", "<", CASE_SECONDS_MAX)),
        single_cell("memory gained", result["growth_bytes"] / 2**20, unit="MiB"),
        *(single_cell(name, count, unit="times") for name, count in result["outcomes"].items()),
    ]
    return finish(make_report("fuzz_gguf", describe_host("gguf", "tokenizers", "jinja2"), cells), options)


if __name__ == "__main__":
    raise SystemExit(main())
