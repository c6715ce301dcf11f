"""How one sequence draws its tokens."""

from __future__ import annotations

import msgspec


class SamplingParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the draw, in the order in which they apply: penalties, logit bias, bans, top-k, top-p, min-p, temperature, draw.

    A draw is keyed by (`seed`, `choice`, output index): it depends on nothing else, so a row does not depend on its batch.
    `temperature` 0 takes the largest logit, the lowest id on a tie. Neutral values switch a stage off.
    """

    temperature: float = 1.0
    top_k: int = 0
    """Keep this many largest logits; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens among the last `repeat_last_n` of prompt and output."""
    repeat_last_n: int = 64
    """0 is off, -1 the whole context."""
    presence_penalty: float = 0.0
    """Subtracted once from each token of the output so far."""
    frequency_penalty: float = 0.0
    """Subtracted for each occurrence in the output so far."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    """Below 2**64. Whoever builds the request draws one when the caller gave none: it is never a constant by accident."""
    choice: int = 0
    banned: tuple[int, ...] = ()
    """Tokens that are not drawn while the output has fewer than `banned_until` tokens: end tokens, for a shortest answer."""
    banned_until: int = 0


class SamplingChoices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asked for; None takes the model's recommendation, else OpenAI's default. See `SamplingParameters`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    """None draws one from the operating system; `Generation.seed` tells which."""
