"""All draws of a step on the device, in the order and with the ties of `backends.sampling`: logits stay there, tokens come back.

`backends.sampling` narrows a row by top-k, then top-p, then min-p. Each keeps a beginning of the same order, largest first and the lower
id first among equals. So one sort and three counts give how many tokens survive, and the last survivor's score and id say of every
token whether it is one: nothing is gathered, and all rows have one shape. The draw is then by id again, as on the host.

All of it is in float64. Sums that decide anything are added up in a fixed order that does not depend on the number of rows: a library's
cumulative sum promises none on an accelerator. A host adds from left to right, so a draw may differ from its own where a uniform number
lies within a few units of the last place of a border, and nowhere else.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from tripower.backends.picolm.accelerated.step_inputs import Views
from tripower.backends.sampling import is_banning
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.engine.step_table import INVALID_LOGITS

SamplerClass = Literal["greedy", "drawn", "narrowed"]
"""What the rows of a step need at most: the largest logit; a draw among tokens near it; a draw after top-k or top-p, which sort."""


def needs_host(row: StepRow) -> bool:
    """Whether a row is drawn on the host, from its own logits: the device knows nothing of penalties, biases, bans and masks."""
    parameters = row.sampling
    plain = parameters.repeat_penalty == 1 and not (parameters.presence_penalty or parameters.frequency_penalty)
    return not plain or bool(parameters.logit_bias) or row.mask is not None or is_banning(parameters, row.output_index)


def sampler_class(rows: list[SamplingParameters], vocabulary: int) -> SamplerClass:
    """Of the rows that the device draws."""
    drawing = [row for row in rows if row.temperature > 0]
    if any(0 < row.top_k < vocabulary or row.top_p < 1 for row in drawing):
        return "narrowed"
    return "drawn" if drawing else "greedy"


def draw(logits: torch.Tensor, given: Views[torch.Tensor], needed: SamplerClass) -> torch.Tensor:
    """Tokens int64 [rows] for logits float32 [rows, vocabulary]; `INVALID_LOGITS` for a row whose largest is not finite."""
    best = logits.argmax(dim=-1)  # the first of equals; NaN counts as the largest
    largest = logits.gather(-1, best[:, None])
    tokens = best
    if needed != "greedy":
        scores = logits.double() - largest.double()
        kept = scores >= torch.log(given.min_p).clamp(max=0.0)[:, None]  # no min-p: everything is at least -inf
        if needed == "narrowed":
            kept = kept & _narrowed(scores, given.top_k, given.top_p)
        hot = given.temperature > 0
        weights = torch.exp(scores / torch.where(hot, given.temperature, 1.0)[:, None])
        tokens = torch.where(hot, _invert(torch.where(kept, weights, 0.0), given.uniform), best)
    return torch.where(torch.isfinite(largest[:, 0]), tokens, INVALID_LOGITS)


def running_sum(values: torch.Tensor) -> torch.Tensor:
    """Sums of all beginnings along the last dimension, by doubling (Hillis and Steele, 1986): the same order on every device."""
    reach = 1
    while reach < values.shape[-1]:
        values = values + functional.pad(values[..., :-reach], (reach, 0))
        reach *= 2
    return values


def _narrowed(scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """bool [rows, vocabulary]: what top-k and then top-p keep."""
    size = scores.shape[-1]
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(size, device=scores.device)
    count = torch.where(top_k > 0, top_k, size).clamp(max=size)
    mass = running_sum(torch.where(rank < count[:, None], torch.exp(ordered), 0.0))
    reached = torch.where(mass >= (top_p * mass[:, -1])[:, None], rank, size - 1).amin(dim=-1) + 1
    count = torch.where(top_p < 1, torch.minimum(count, reached), count)
    last = (count - 1)[:, None]
    edge, edge_id = ordered.gather(-1, last), ids.gather(-1, last)
    return (scores > edge) | ((scores == edge) & (rank <= edge_id))


def _invert(weights: torch.Tensor, fraction: torch.Tensor) -> torch.Tensor:
    """The first token whose running weight exceeds this fraction of the whole, of those with any weight."""
    size = weights.shape[-1]
    running = running_sum(weights)
    ids = torch.arange(size, device=weights.device)
    possible = weights > 0
    beyond = possible & (running > (fraction * running[:, -1])[:, None])
    first = torch.where(beyond, ids, size).amin(dim=-1)
    last = torch.where(possible, ids, -1).amax(dim=-1)
    return torch.minimum(first, last)  # the product may round up to the whole
