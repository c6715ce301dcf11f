"""Proof, on this machine and this model, that a row's logits have the same bits whatever else is in its step.

A stream of tokens is evaluated one row at a time; those bits are the measure. Then the same positions come with every number of rows
up to the batch's limit: as one piece of a prompt, beside neighbours in a batch, and on a prefix that is shared with another sequence.
The result is kept beside the compiled kernels, under a name that stands for model, kernels, tiles, threads and processor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from tripower.backends.picolm.native.kept import list_kept, read_kept, write_kept
from tripower.runtime.engine import Certificate, StepRow

if TYPE_CHECKING:
    from tripower.backends.picolm.native.engine import NativeEngine

PREFIX_OF_NAMES = "certificate-"
PREFIX = 5
"""Tokens before those that are compared."""
TOKENS_MAX = 24
"""Positions of the stream that are compared."""

Logits = NDArray[np.float32]


class Certifiable(msgspec.Struct, frozen=True):
    """What is certified, and how far. `key` names all that the bits may depend on."""

    model: str
    target: str
    threads: int
    key: tuple[object, ...]
    rows_max: int
    vocabulary_size: int
    context_max: int


class KeptCertificate(msgspec.Struct, frozen=True):
    """A certificate as it is kept: for people beside what it certifies."""

    model: str
    target: str
    threads: int
    certificate: Certificate


def certify(engine: NativeEngine, subject: Certifiable) -> Generator[None, None, Certificate]:
    """Measure, or take what was measured before; yields at boundaries. The engine's sequences are closed before and after."""
    name = f"{PREFIX_OF_NAMES}{hashlib.sha256(repr(subject).encode()).hexdigest()[:32]}"
    kept = read_kept(name, KeptCertificate)
    if kept is not None:
        return kept.certificate
    certificate = yield from _measure(engine, subject)
    write_kept(name, KeptCertificate(subject.model, subject.target, subject.threads, certificate))
    return certificate


def kept_certificates() -> list[KeptCertificate]:
    """All that were measured on this machine with the present kernels. Blocks for small reads."""
    return list_kept(PREFIX_OF_NAMES, KeptCertificate)


def _measure(engine: NativeEngine, subject: Certifiable) -> Generator[None, None, Certificate]:
    probe = _Probe(engine, subject)
    counts = mismatches = 0
    expected = yield from probe.alone()
    for rows in range(1, subject.rows_max + 1):
        found = [probe.beside(rows)]
        if rows <= len(expected):
            found.append(probe.in_one_piece(rows))
        for logits in found:
            mismatches += _differing(logits, expected, same_row=logits is found[0])
        counts += 1
        yield
    mismatches += _differing(probe.after_a_prompt(), expected[-1:], same_row=True)
    yield
    return Certificate(row_counts=counts, positions=len(expected), mismatches=mismatches)


def _differing(found: Logits, expected: Logits, *, same_row: bool) -> int:
    """Rows whose bits are not those expected: of the first position in all rows, or of one position after the other."""
    measure = np.broadcast_to(expected[0], found.shape) if same_row else expected[: len(found)]
    return int((found.view(np.int32) != measure.view(np.int32)).any(axis=1).sum())


class _Probe:
    """Evaluates the same tokens in different company."""

    def __init__(self, engine: NativeEngine, subject: Certifiable) -> None:
        self._engine, self._subject = engine, subject
        size = min(PREFIX + TOKENS_MAX, subject.context_max)
        generator = np.random.Generator(np.random.PCG64(7))
        tokens = [int(token) for token in generator.integers(0, subject.vocabulary_size, size)]
        self._prefix, self._tokens = tokens[: min(PREFIX, size - 1)], tokens[min(PREFIX, size - 1) :]

    def alone(self) -> Generator[None, None, Logits]:
        """Row by row."""
        engine, found = self._engine, []
        engine.open_sequence(0)
        for token in [*self._prefix, *self._tokens]:
            found.append(engine.logits(0, [token]))
            yield
        engine.close_sequence(0)
        return np.concatenate(found[len(self._prefix) :])

    def in_one_piece(self, rows: int) -> Logits:
        """The first `rows` tokens together, the prefix in one piece as well."""
        self._begin(self._prefix)
        found: Logits = self._engine.logits(0, self._tokens[:rows])
        self._engine.close_sequence(0)
        return found

    def after_a_prompt(self) -> Logits:
        """The last token, after all others in one step: the tiles of long prompts."""
        self._begin([*self._prefix, *self._tokens[:-1]])
        found: Logits = self._engine.logits(0, self._tokens[-1:])
        self._engine.close_sequence(0)
        return found

    def beside(self, rows: int) -> Logits:
        """The first token in `rows` sequences at once, all but one on pages that another one wrote."""
        engine, length = self._engine, len(self._prefix)
        self._begin(self._prefix)
        for sequence in range(1, rows):
            engine.fork(0, sequence, length)
        found = engine.batch_logits([StepRow(sequence, length, (self._tokens[0],), draw=False) for sequence in range(rows)])
        for sequence in range(rows):
            engine.close_sequence(sequence)
        return found

    def _begin(self, tokens: list[int]) -> None:
        """Sequence 0 with these tokens, in one step; a context of one position has room for none."""
        self._engine.open_sequence(0)
        if tokens:
            self._engine.step([StepRow(0, 0, tuple(tokens), draw=False)])
