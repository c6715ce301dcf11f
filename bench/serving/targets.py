"""What ours has to reach against each peer, and how long a cell may take.

The targets are ratios ours / peer. Those against llama.cpp belong to one model in one encoding; those against slower engines hold for
any model. A cell without a line here has no target.
"""

from __future__ import annotations

import msgspec

from tripower.bench.schema import Target

PREFILL = 0
"""Stands in the tables where others have a concurrency."""

Ratios = dict[int, float]

LLAMACPP: dict[tuple[str, str], Ratios] = {
    ("smollm2-135m", "Q4_1"): {1: 1.3, 4: 2.5, 8: 3.0, 16: 3.0, PREFILL: 2.5},
    ("smollm2-135m", "Q4_0"): {1: 1.0, 4: 1.3, 8: 1.6, 16: 1.6, PREFILL: 1.0},
    ("gemma-3-270m", "Q4_K_M"): {1: 1.1, 4: 1.5, 8: 2.0, 16: 2.0},
}
"""By model and encoding."""

EVERY_CONCURRENCY = {"mistralrs": 6.0, "transformers": 5.0, "own-llamacpp": 0.97}
"""Peers against which one ratio is asked for, whatever the model and the number of clients."""


def target_for(peer: str | None, model: str, encoding: str, concurrency: int) -> Target | None:
    """What the generation cell at `concurrency`, or the prefill cell (`PREFILL`), has to reach."""
    if peer in EVERY_CONCURRENCY:
        ratio = None if concurrency == PREFILL else EVERY_CONCURRENCY[peer]
    elif peer == "llamacpp":
        ratio = LLAMACPP.get((model, encoding), {}).get(concurrency)
    else:
        ratio = None
    return None if ratio is None else Target("ratio", ">=", ratio)


# How much of it fits into the time.

TOKENS_MIN = 8
ROUNDS_MIN = 2
"""One in each order."""
BLOCKS_PER_ROUND = 1.5
"""Of each side: A-B-A and B-A-B in turn."""


class Trial(msgspec.Struct, frozen=True):
    """How long `tokens` tokens took: all in all, and until the first token of all came. Seconds."""

    tokens: int
    seconds: float
    soonest: float

    def seconds_for(self, tokens: int) -> float:
        """How long so many tokens should take: the first as before, the others in proportion."""
        each = max(0.0, self.seconds - self.soonest) / max(1, self.tokens - 1)
        return self.soonest + each * (tokens - 1)


class Size(msgspec.Struct, frozen=True):
    """What fits: tokens of a block, and rounds of three blocks."""

    tokens: int
    rounds: int


def size_blocks(ours: Trial, peer: Trial, *, tokens_max: int, rounds_max: int, seconds: float) -> Size:
    """As many rounds of `tokens_max` tokens as fit into `seconds`; where not even two fit, halved blocks.

    Rounds are even in number, so that both orders count alike. Two rounds of the shortest block are measured however long they take.
    """
    tokens = tokens_max
    while True:
        round_seconds = BLOCKS_PER_ROUND * (ours.seconds_for(tokens) + peer.seconds_for(tokens))
        fitting = int(seconds / round_seconds) if round_seconds else rounds_max
        if fitting >= ROUNDS_MIN or tokens // 2 < TOKENS_MIN:
            rounds = min(rounds_max, fitting)
            return Size(tokens, max(rounds - rounds % 2, min(ROUNDS_MIN, rounds_max)))
        tokens //= 2
