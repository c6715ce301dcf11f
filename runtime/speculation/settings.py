"""How somebody asks for speculation: a strategy's word and a few bounds (BK §2.1, A3, A4)."""

from __future__ import annotations

from enum import Enum

import msgspec

from tripower.runtime.kernel.errors import InvalidConfiguration

DRAFT_BOUND = 64
"""No draft is longer than this, whatever is asked for (A3)."""
NGRAM_BOUND = 16
"""No suffix that is looked up is longer than this: it bounds what a token costs."""


class Strategy(Enum):
    """Where guesses come from. One that can be read is not yet one that a model supports."""

    AUTO = "auto"
    OFF = "off"
    PROMPT_LOOKUP = "prompt-lookup"
    NGRAM_CONTEXT = "ngram-context"
    DRAFT_MODEL = "draft-model"
    MTP = "mtp"
    DFLASH = "dflash"
    DSPARK = "dspark"


SPELLINGS = {
    **{strategy.value: strategy for strategy in Strategy},
    "none": Strategy.OFF,
    "false": Strategy.OFF,
    "lookup": Strategy.PROMPT_LOOKUP,
    "true": Strategy.PROMPT_LOOKUP,
    "context": Strategy.NGRAM_CONTEXT,
    "draft": Strategy.DRAFT_MODEL,
    "multi-token-prediction": Strategy.MTP,
}
"""Accepted words, besides those with `_` for `-`."""

LOOKUPS = frozenset({Strategy.PROMPT_LOOKUP, Strategy.NGRAM_CONTEXT})
"""Strategies that need no weights."""
DRAFTS = {Strategy.MTP: 3, Strategy.DRAFT_MODEL: 4, Strategy.DFLASH: 4, Strategy.DSPARK: 4}
"""Tokens of a draft where `draft_max` is unset, for strategies with weights (A4)."""
DRAFT_FIXED, DRAFT_ADAPTIVE = 8, 15
"""The same for those without: 8 for a width that stays (A4); one that follows costs and counts is bounded by these, and 16 rows are
the largest step whose cost is measured everywhere."""


def read_strategy(word: str, *, param: str = "speculation.mode") -> Strategy:
    """The strategy that a word stands for, whatever its case and the spaces around it.

    Raises `InvalidConfiguration`, which names `param`, for an unknown word.
    """
    strategy = SPELLINGS.get(word.strip().lower().replace("_", "-"))
    if strategy is None:
        known = ", ".join(strategy.value for strategy in Strategy)
        raise InvalidConfiguration(f"{param}: {word!r} is no strategy; use one of {known}", param=param)
    return strategy


class SpeculationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What bounds the drafts of a request. Raises `InvalidConfiguration`, which names the field, for values out of range."""

    strategy: Strategy = Strategy.AUTO
    draft_max: int = 0
    """Longest draft in tokens, 1 to 64; 0: as the strategy has it."""
    draft_min: int = 1
    """A shorter guess is not worth a step and is dropped."""
    draft_p_min: float = 0.0
    """A draft model stops in front of a token that it believes in less than this. Lookups have no probabilities."""
    ngram_max: int = 5
    """Longest suffix of prompt and output that is looked up."""
    ngram_min: int = 1
    """Shortest suffix that is looked up."""
    adaptive: bool = True
    """Widths follow what this request's guesses were worth; otherwise each draft is as long as `draft_max` allows."""

    def __post_init__(self) -> None:
        _check("draft_max", self.draft_max, 0, DRAFT_BOUND)
        _check("draft_min", self.draft_min, 1, self.width_max)
        _check("draft_p_min", self.draft_p_min, 0, 1)
        _check("ngram_max", self.ngram_max, 1, NGRAM_BOUND)
        _check("ngram_min", self.ngram_min, 1, self.ngram_max)

    @property
    def width_max(self) -> int:
        """Tokens of the longest draft."""
        return self.draft_max or DRAFTS.get(self.strategy, DRAFT_ADAPTIVE if self.adaptive else DRAFT_FIXED)


def _check(field: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:  # NaN is not in any range
        param = f"speculation.{field}"
        raise InvalidConfiguration(f"{param}: {value} is out of range; use {least} to {most}", param=param)
