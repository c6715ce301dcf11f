"""What rows must fulfil before native code sees them: it answers odd ones with an abort of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tripower.backends.sampling import check_sampling
from tripower.runtime.engine import EngineInfo, StepRow
from tripower.runtime.kernel.errors import InvalidRequest


def check_rows(rows: Sequence[StepRow], lengths: Mapping[int, int], info: EngineInfo) -> None:
    """Raise `InvalidRequest` unless each row goes on where its sequence ends, in ids and positions that exist."""
    if len({row.sequence for row in rows}) != len(rows):
        raise InvalidRequest("a sequence appears twice in one step", param="sequence")
    for row in rows:
        length = known_length(lengths, row.sequence)
        if row.position != length:
            raise InvalidRequest(
                f"the sequence {row.sequence} goes on at position {length}, not {row.position}", param="position"
            )
        _check_tokens(row, info)
        if row.draw:
            check_sampling(row.sampling, info.vocabulary_size)


def known_length(lengths: Mapping[int, int], sequence: int) -> int:
    """The length of an open sequence. Raises `InvalidRequest` for any other."""
    length = lengths.get(sequence)
    if length is None:
        raise InvalidRequest(f"the sequence {sequence} is not open", param="sequence")
    return length


def check_length(lengths: Mapping[int, int], sequence: int, length: int) -> None:
    """Raise `InvalidRequest` unless the sequence has that many positions."""
    present = known_length(lengths, sequence)
    if not 0 <= length <= present:
        raise InvalidRequest(f"the sequence {sequence} has {present} positions, not {length}", param="length")


def _check_tokens(row: StepRow, info: EngineInfo) -> None:
    if not row.tokens:
        raise InvalidRequest(f"the sequence {row.sequence} has no tokens to evaluate", param="tokens")
    if not (min(row.tokens) >= 0 and max(row.tokens) < info.vocabulary_size):
        raise InvalidRequest(f"token ids must lie in 0..{info.vocabulary_size - 1}", param="tokens")
    end = row.position + len(row.tokens)
    if end > info.context_max:
        raise InvalidRequest(
            f"the sequence {row.sequence} would have {end} positions; the context has {info.context_max}",
            code="context_length_exceeded",
            param="tokens",
        )
