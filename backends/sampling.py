"""How a row of logits becomes a token: penalties, logit bias, mask and bans, top-k, top-p, min-p, temperature, draw, always in this
order.

A token is a function of its own row, history and parameters only. Nothing is remembered between calls and no generator has a
state: a draw is keyed by (seed, choice, output index), so the same index gives the same number whatever ran beside it, however
often a step was repeated, and with or without speculation. Everything but the plain greedy path is computed in float64.

Survivors of a filter stay in ascending order of id, and the draw inverts their cumulative distribution in that order. Where a
filter has to choose between equal logits, the lower id wins. `-inf` marks a token that cannot be drawn; NaN, `+inf` and a row
without any finite entry are faults of the device, never a default token. Where mask and bans leave nothing of sound logits, the
row's answer is `INVALID_LOGITS`: that is its own fault, and nobody else's.

Log probabilities are told of the logits as they came, before any of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tripower.runtime.engine.constraint import TokenMask
from tripower.runtime.engine.contract import StepRow
from tripower.runtime.engine.logprobs import TokenLogprobs
from tripower.runtime.engine.sampling_parameters import SamplingParameters
from tripower.runtime.engine.step_table import INVALID_LOGITS, NOT_DRAWN
from tripower.runtime.kernel.errors import DeviceFailed, InvalidRequest

Ids: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.float64]

NUCLEUS_FIRST = 64
"""Tokens that top-p sorts at first; eight times as many whenever these do not reach the mass."""

DEPTHS = (4.0, 8.0, 16.0)
"""Distances below the largest score, tried in turn to find a superset of the largest tokens without sorting the row."""

MAGNITUDE_MAX = 1e6
"""Of every setting: no request can carry finite logits out of the finite, which would fail the step and everybody in its batch."""

REPEAT_PENALTY_MIN = 0.01
"""It divides; see `MAGNITUDE_MAX`."""

LOGPROB_MIN = -9999.0
"""In place of less, and of what is no number: what is told stays finite."""


def draw_rows(logits: NDArray[np.float32], rows: Sequence[StepRow]) -> list[int]:
    """One token for each row of `logits`, float32 [rows, vocabulary], which is left as it is.

    `INVALID_LOGITS` for a row whose mask and bans leave nothing. Rows that only want the largest logit are done together. Raises
    `DeviceFailed` (`invalid_logits`). Blocks for about a microsecond a greedy row and well under a millisecond a sampled one at
    50,000 tokens.
    """
    greedy = [index for index, row in enumerate(rows) if row.mask is None and is_plain_greedy(row.sampling, row.output_index)]
    tokens = [NOT_DRAWN] * len(rows)
    if greedy:
        chosen = logits if len(greedy) == len(rows) else logits[greedy]
        best = np.argmax(chosen, axis=1)  # the first of equals; NaN counts as the largest
        if not np.isfinite(np.take_along_axis(chosen, best[:, None], axis=1)).all():
            raise _invalid_logits()
        for index, token in zip(greedy, best.tolist(), strict=True):
            tokens[index] = token
    for index, row in enumerate(rows):
        if tokens[index] == NOT_DRAWN:
            tokens[index] = draw_token(logits[index], row)
    return tokens


def is_plain_greedy(parameters: SamplingParameters, output_index: int = 0) -> bool:
    """Whether the token at this index of the output, without a mask, is the arg-max of the logits as they are.

    What holds at index 0 holds at all of them.
    """
    return (
        parameters.temperature <= 0
        and parameters.repeat_penalty == 1
        and not parameters.presence_penalty
        and not parameters.frequency_penalty
        and not parameters.logit_bias
        and not is_banning(parameters, output_index)
    )


def is_banning(parameters: SamplingParameters, output_index: int) -> bool:
    """Whether some tokens cannot be drawn at this index of the output."""
    return bool(parameters.banned) and output_index < parameters.banned_until


def draw_token(logits: NDArray[np.float32], row: StepRow) -> int:
    """The token of one row of logits, float32 [vocabulary], or `INVALID_LOGITS`; see `draw_rows`."""
    parameters = row.sampling
    scores = logits.astype(np.float64)
    _apply_penalties(scores, row)
    for token, bias in parameters.logit_bias:
        scores[token] += bias
    best = int(np.argmax(scores))
    if not math.isfinite(scores[best]):
        raise _invalid_logits()
    if row.mask is not None or is_banning(parameters, row.output_index):
        scores[~allowed_tokens(row, len(scores))] = -np.inf
        best = int(np.argmax(scores))
        if not math.isfinite(scores[best]):
            return INVALID_LOGITS
    if parameters.temperature <= 0:
        return best
    scores -= scores[best]
    ids, scores = _filter(scores, parameters)
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature sends all but the best to -inf
        weights = np.exp(scores / parameters.temperature)
    drawn = _invert(weights, uniform(parameters.seed, parameters.choice, row.output_index))
    return drawn if ids is None else int(ids[drawn])


def allowed_tokens(row: StepRow, vocabulary_size: int) -> NDArray[np.bool_]:
    """What mask and bans leave of a vocabulary, bool [vocabulary_size]. A token that the mask does not reach is not allowed."""
    allowed = np.ones(vocabulary_size, np.bool_) if row.mask is None else _unpack(row.mask, vocabulary_size)
    if is_banning(row.sampling, row.output_index):
        allowed[list(row.sampling.banned)] = False
    return allowed


def row_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """A token's log probability and those of the `top` likeliest, of logits as they came, float32 [vocabulary].

    In float64, and never below `LOGPROB_MIN`. Blocks for under a millisecond at 50,000 tokens.
    """
    scores = logits.astype(np.float64)
    largest = scores.max()
    if not math.isfinite(largest):
        scores, norm = np.full_like(scores, LOGPROB_MIN), 0.0  # the draw says what is wrong with such a row
    else:
        scores -= largest
        norm = math.log(float(np.exp(scores).sum()))

    def told(index: int) -> float:
        return max(float(scores[index]) - norm, LOGPROB_MIN)

    likeliest = _largest(scores, min(top, len(scores))).tolist() if top > 0 else []
    return TokenLogprobs(token, told(token), tuple((index, told(index)) for index in likeliest))


def uniform(seed: int, choice: int, output_index: int) -> float:
    """A float64 in [0, 1), a multiple of 2**-53, that depends on the three numbers only.

    Philox 4x64 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the key (seed, choice) and
    the counter (output index + 1, 0, 0, 0); the upper 53 bits of the first word.
    """
    words = 2**64 - 1
    generator = np.random.Philox(
        key=np.array([seed & words, choice & words], np.uint64), counter=np.array([output_index, 0, 0, 0], np.uint64)
    )
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def check_sampling(parameters: SamplingParameters, vocabulary_size: int) -> None:
    """Raise `InvalidRequest`, naming the field, for settings that no row could be drawn with. Called before a step begins."""
    for name in ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(parameters, name)):
            raise InvalidRequest(f"{name} is not a finite number", param=name)
        if abs(getattr(parameters, name)) > MAGNITUDE_MAX:
            raise InvalidRequest(f"{name} is beyond {MAGNITUDE_MAX:g}", param=name)
    if parameters.repeat_penalty <= 0:
        raise InvalidRequest("repeat_penalty must be above 0", param="repeat_penalty")
    if parameters.repeat_penalty < REPEAT_PENALTY_MIN:
        raise InvalidRequest(f"repeat_penalty is below {REPEAT_PENALTY_MIN:g}", param="repeat_penalty")
    for token, bias in parameters.logit_bias:
        if not 0 <= token < vocabulary_size:
            raise InvalidRequest(f"logit_bias names the token {token}, outside 0..{vocabulary_size - 1}", param="logit_bias")
        if not math.isfinite(bias):
            raise InvalidRequest("logit_bias has a value that is not a finite number", param="logit_bias")
        if abs(bias) > MAGNITUDE_MAX:
            raise InvalidRequest(f"logit_bias has a value beyond {MAGNITUDE_MAX:g}", param="logit_bias")
    for token in parameters.banned:
        if not 0 <= token < vocabulary_size:
            raise InvalidRequest(f"the token {token} cannot be banned: it is outside 0..{vocabulary_size - 1}", param="banned")


def _unpack(mask: TokenMask, vocabulary_size: int) -> NDArray[np.bool_]:
    """One truth for each token: bit 0 of word 0 first."""
    bits = np.unpackbits(np.ascontiguousarray(mask, "<u4").view(np.uint8), bitorder="little")[:vocabulary_size]
    missing = vocabulary_size - len(bits)
    return (np.pad(bits, (0, missing)) if missing else bits).astype(np.bool_)


def _apply_penalties(scores: Scores, row: StepRow) -> None:
    """Repetition looks at the end of prompt and output, presence and frequency at the output alone."""
    parameters = row.sampling
    if parameters.repeat_penalty != 1 and parameters.repeat_last_n:
        window = row.history if parameters.repeat_last_n < 0 else row.history[-parameters.repeat_last_n :]
        ids = np.array(sorted(set(window)), np.int64)
        chosen = scores[ids]
        scores[ids] = np.where(chosen > 0, chosen / parameters.repeat_penalty, chosen * parameters.repeat_penalty)
    if parameters.presence_penalty or parameters.frequency_penalty:
        counts = Counter(row.history[row.prompt_length :])
        ids = np.array(list(counts), np.int64)
        scores[ids] -= parameters.presence_penalty + parameters.frequency_penalty * np.array(list(counts.values()), np.float64)


def _filter(scores: Scores, parameters: SamplingParameters) -> tuple[Ids | None, Scores]:
    """Ids that survive, ascending, and their scores. None stands for all ids. The largest score is 0."""
    ids: Ids | None = None
    if 0 < parameters.top_k < len(scores):
        ids = np.sort(_largest(scores, parameters.top_k))
        scores = scores[ids]
    if parameters.top_p < 1:
        kept = np.sort(_nucleus(scores, parameters.top_p))
        ids, scores = _narrow(ids, scores, kept)
    if parameters.min_p > 0:
        kept = np.flatnonzero(scores >= min(math.log(parameters.min_p), 0.0))
        ids, scores = _narrow(ids, scores, kept)
    return ids, scores


def _narrow(ids: Ids | None, scores: Scores, kept: Ids) -> tuple[Ids, Scores]:
    return (kept if ids is None else ids[kept]), scores[kept]


def _largest(scores: Scores, count: int) -> Ids:
    """Indices of the `count` largest scores, largest first, the lower index first among equals. The largest score is 0."""
    near = _near(scores, count)
    scores = scores[near]
    if count < len(near):
        edge = np.partition(scores, len(near) - count)[len(near) - count]
        above = np.flatnonzero(scores > edge)
        kept = np.sort(np.concatenate((above, np.flatnonzero(scores == edge)[: count - len(above)])))
        near, scores = near[kept], scores[kept]
    return near[np.argsort(-scores, kind="stable")]


def _near(scores: Scores, count: int) -> Ids:
    """Ascending indices of all scores above some depth, at least `count` of them if there are as many: cheaper to partition."""
    for depth in DEPTHS:
        near = np.flatnonzero(scores >= -depth)
        if len(near) >= count:
            return near
    return np.arange(len(scores))


def _nucleus(scores: Scores, top_p: float) -> Ids:
    """Indices of the smallest set of largest scores that holds at least `top_p` of the mass; at least one."""
    weights = np.exp(scores)
    wanted = top_p * float(weights.sum())
    count = NUCLEUS_FIRST
    while True:
        order = _largest(scores, count)
        needed = int(np.searchsorted(np.cumsum(weights[order]), wanted)) + 1
        if needed <= len(order) or len(order) == len(scores):
            return order[:needed]
        count *= 8


def _invert(weights: Scores, fraction: float) -> int:
    """The first index whose cumulative weight exceeds this fraction of the whole: its own weight is then above zero."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, fraction * cumulative[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))  # the product may round up to the whole


def _invalid_logits() -> DeviceFailed:
    return DeviceFailed(
        "the device returned logits that are not finite: the model's state is not usable", code="invalid_logits"
    )
