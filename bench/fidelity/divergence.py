"""How far one distribution of the next token is from another.

The Kullback-Leibler divergence KL(reference ‖ other) in nats: what is lost, on average, by taking `other` for what `reference` says. It
is computed in float64 from logits, position by position, with the maximum subtracted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.bench.paired import Paired, quartiles

Floats = NDArray[np.float64]
PARTS = 16
"""Contiguous parts of the text; the quartiles of their ratios say how far to trust the ratio of the whole."""


def log_softmax(logits: NDArray[np.floating]) -> Floats:
    """Natural logarithms of the probabilities, [positions, vocabulary]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def divergences(reference: Floats, other: Floats) -> Floats:
    """KL(reference ‖ other) for each position, [positions], of logarithms of probabilities. Never below zero but by rounding.

    What the reference holds impossible adds nothing; what only `other` holds impossible adds infinity.
    """
    probabilities = np.exp(reference)
    with np.errstate(invalid="ignore"):  # -inf minus -inf, where the probability is zero
        terms = np.where(probabilities > 0, probabilities * (reference - other), 0.0)
    values: Floats = terms.sum(axis=-1)
    return values


class Fidelity(msgspec.Struct, frozen=True):
    """What an engine's distributions were like beside the reference's: for each position."""

    divergence: Floats
    agrees: NDArray[np.bool_]
    """Whether the most likely token is the same."""

    @property
    def mean(self) -> float:
        return float(self.divergence.mean())

    @property
    def agreement(self) -> float:
        return float(self.agrees.mean())

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.divergence, percent))


def compare(chunks: Iterable[tuple[NDArray[np.float32], Sequence[NDArray[np.float32]]]]) -> list[Fidelity]:
    """For chunks of (reference logits, logits of each other engine): one `Fidelity` for each of the others, in order."""
    found: list[list[tuple[Floats, NDArray[np.bool_]]]] = []
    for reference, others in chunks:
        expected = log_softmax(reference)
        found = found or [[] for _ in others]
        for kept, other in zip(found, others, strict=True):
            kept.append((divergences(expected, log_softmax(other)), reference.argmax(axis=-1) == other.argmax(axis=-1)))
    return [Fidelity(*(np.concatenate(column) for column in zip(*kept, strict=True))) for kept in found]


def paired_divergence(ours: Fidelity, peer: Fidelity) -> Paired:
    """Mean divergences and their ratio; the quartiles are those of the ratios of `PARTS` parts of the text."""
    parts = min(PARTS, len(ours.divergence))
    ratios = [
        float(mine.mean()) / theirs
        for mine, part in zip(np.array_split(ours.divergence, parts), np.array_split(peer.divergence, parts), strict=True)
        if (theirs := float(part.mean()))
    ]
    lower, _, upper = quartiles(ratios) if ratios else (np.nan, np.nan, np.nan)
    ratio = ours.mean / peer.mean if peer.mean else np.nan
    return Paired(ours=ours.mean, peer=peer.mean, ratio=ratio, iqr=(lower, upper), rounds=parts)
