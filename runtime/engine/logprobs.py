"""Log probabilities of tokens, as callers ask for them.

They are of the model's own distribution: the log of the softmax of a row's logits as the engine computed them, in natural logarithms,
before penalties, bias, filters, temperature or a constraint. So they are always finite, and a token that a setting forbids has one too.
"""

from __future__ import annotations

import attrs
import msgspec

NO_LOGPROBS = -1
TOP_LOGPROBS_MAX = 20
"""Most alternatives that can be asked for at one position."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """One position: the token that stands there, and the likeliest ones, likeliest first, the lower id first among equals."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@attrs.define
class RowReport:
    """What was asked to be known of one sequence's part of one step."""

    drawn: TokenLogprobs | None = None
    """The drawn token, if one was."""
    run: list[TokenLogprobs] = attrs.Factory(list)
    """The tokens that were drawn before it in the same step, where guesses were right."""
    prompt: list[TokenLogprobs] = attrs.Factory(list)
    """The prompt's tokens behind the rows of this step, in order: each row tells of the token after it."""
