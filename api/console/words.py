"""The words behind a verb: how many there may be, and which models they can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from tripower.api.console.verb import Subject


def no_words(words: Sequence[str], verb: str) -> None:
    """Raise `InvalidRequest` for any."""
    if words:
        raise InvalidRequest(f"{verb} takes no arguments: leave {' '.join(words)[:100]!r} out")


def one_word(words: Sequence[str], usage: str) -> str:
    """The only word. Raises `InvalidRequest`, with the way to write it."""
    if len(words) != 1 or not words[0]:
        raise InvalidRequest(f"write {usage}")
    return words[0]


def word_or_none(words: Sequence[str], usage: str) -> str | None:
    """The only word, or None. Raises `InvalidRequest` for several."""
    return one_word(words, usage) if words else None


def model_names(subject: Subject) -> list[str]:
    """Every model that can be asked for. Synchronous: for completion."""
    statistics = [actor.details for actor in subject.runtime.statistics()]
    return [name for details in statistics for name, _ in getattr(details, "names", ())]
