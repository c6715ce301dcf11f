"""`tripower bench fidelity`: how much an engine's arithmetic costs, in nats.

A text is fed to three engines position by position (teacher forcing): ours, llama.cpp, and a float32 reference over the exact values
that the file holds. At each position the distribution of the next token is compared with the reference's. Quantisation itself is on
both sides of that comparison and costs nothing here: what is seen is what an engine adds, by rounding activations for instance.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tripower.bench.engines import Engines, open_engines
from tripower.bench.fidelity.divergence import Fidelity, compare, paired_divergence
from tripower.bench.host import describe_host
from tripower.bench.measured_model import MeasuredModel, add_model_options, find_measured_model
from tripower.bench.paired import Paired, Progress
from tripower.bench.peers.ask_llamacpp import ask_llamacpp
from tripower.bench.peers.registry import PEERS, check_peer
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, paired_cell
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import InvalidConfiguration

TEXT = Path(__file__).with_name("text.txt")
POSITIONS = 512
POSITIONS_MIN = 16
SEQUENCE = 0
CHUNK = 16
"""Positions at a time: a chunk of logits in float64 stays small beside the model, however large the vocabulary is."""

Logits = NDArray[np.float32]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status.

    Raises `InvalidConfiguration` without llama.cpp or with too short a text, `Unavailable` when llama.cpp fails, `ModelRefused`, and
    what a pull raises.
    """
    parser = argparse.ArgumentParser(
        prog="tripower bench fidelity",
        description="Divergence of the next token's distribution from float32 arithmetic on the file's own values, beside llama.cpp's.",
    )
    add_model_options(parser)
    parser.add_argument("--positions", type=int, default=POSITIONS, metavar="N", help=f"positions to compare ({POSITIONS})")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help="another text, in UTF-8")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of either engine (the cores of this process)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    check_peer("llamacpp")
    positions = POSITIONS_MIN if options.quick else options.positions
    threads = options.threads or read_host_limits().cores
    host = describe_host(PEERS["llamacpp"].module, "llama-cpp-py-sync")
    with progress_line() as progress:
        model = find_measured_model(options.model, options.encoding, progress)
        cells = measure(model, options.text.read_text(encoding="utf-8"), positions, threads, progress)
    host |= model.described() | {"threads": threads, "text": options.text.name}
    return finish(make_report("fidelity", host, cells), options)


def measure(model: MeasuredModel, text: str, positions: int, threads: int, progress: Progress) -> list[Cell]:
    """All cells. Blocks for a minute or two."""
    progress("loading the model")
    engines = open_engines(model.path, context=positions, threads=threads)
    tokens = engines.text.tokenize(text)[:positions]
    if len(tokens) < positions:
        raise InvalidConfiguration(f"the text has {len(tokens)} tokens of this model, and {positions} are asked for")
    with tempfile.TemporaryDirectory(prefix="tripower-bench-") as folder:
        out = Path(folder) / "logits.npy"
        progress("llama.cpp")
        ask_llamacpp("logits", model.path, tokens, "--out", str(out), "--threads", str(threads))
        peer: Logits = np.load(out, mmap_mode="r")
        ours, theirs = compare(_chunks(engines, tokens, peer, progress))
        del peer
    return fidelity_cells(ours, theirs)


def _chunks(engines: Engines, tokens: list[int], peer: Logits, progress: Progress) -> Iterator[tuple[Logits, list[Logits]]]:
    """(reference, [ours, peer's]) for a few positions at a time."""
    for engine in (engines.ours, engines.reference):
        engine.open_sequence(SEQUENCE)
    for start in range(0, len(tokens), CHUNK):
        progress(f"position {start} of {len(tokens)}")
        piece = tokens[start : start + CHUNK]
        expected = engines.reference.logits(SEQUENCE, piece)
        yield expected, [engines.ours.logits(SEQUENCE, piece), peer[start : start + len(piece)]]


def fidelity_cells(ours: Fidelity, peer: Fidelity) -> list[Cell]:
    """The report of two engines that were compared with one reference."""
    positions = len(ours.divergence)
    note = f"mean of {positions} teacher-forced positions; peer: llama.cpp at its defaults; less is better"
    return [
        paired_cell("KL divergence", paired_divergence(ours, peer), unit="nats", target=Target("ratio", "<=", 1.0), note=note),
        _plain("KL divergence, 99th percentile", ours.percentile(99), peer.percentile(99), "nats", "of the same positions"),
        _plain(
            "top-1 agreement", ours.agreement, peer.agreement, "share", "positions whose likeliest token is the reference's"
        ),
    ]


def _plain(name: str, ours: float, peer: float, unit: str, note: str) -> Cell:
    ratio = ours / peer if peer else np.nan
    return paired_cell(name, Paired(ours=ours, peer=peer, ratio=ratio, iqr=(ratio, ratio), rounds=1), unit=unit, note=note)
