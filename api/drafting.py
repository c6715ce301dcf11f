"""Which model guesses for the others: `speculation.draft_model`, from what a user writes to what a backend is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tripower.actors.models import ModelSource
from tripower.api.engines import EMBEDDED
from tripower.runtime.configuration.settings import SpeculationChoices
from tripower.runtime.engine import DraftSpecification
from tripower.runtime.host import ModelNeeds
from tripower.runtime.kernel.errors import InvalidConfiguration, NotFound
from tripower.runtime.speculation import SpeculationSettings, Strategy, read_strategy, resolve

DRAFTED = ("picolm", "toy")
"""Backends that can have a draft model at a model's side."""


def speculation_settings(choices: SpeculationChoices) -> SpeculationSettings | None:
    """How tokens are guessed; None where they are not. Raises `InvalidConfiguration` for a mode that no model supports."""
    strategy = read_strategy(choices.mode)
    if resolve(strategy, draft=bool(choices.draft_model)) is Strategy.OFF:
        return None
    return SpeculationSettings(strategy=strategy, draft_max=choices.draft_max)


def find_draft(
    choices: SpeculationChoices, sources: Sequence[ModelSource], find: Callable[[str], ModelSource]
) -> DraftSpecification | None:
    """The draft model for these models; None where none is asked for. `find` knows what a reference stands for.

    Raises `InvalidConfiguration` where it cannot be had beside one of them, and what `find` raises.
    """
    settings = speculation_settings(choices)
    if settings is None or settings.strategy is not Strategy.DRAFT_MODEL:
        return None
    try:
        draft = find(choices.draft_model)
    except NotFound as error:
        raise NotFound(f"speculation.draft_model: {error.message}", code=error.code, param="speculation.draft_model") from error
    for source in (draft, *sources):
        if source.backend not in (*DRAFTED, EMBEDDED) or (source is draft and source.backend == EMBEDDED):
            raise InvalidConfiguration(
                f"speculation.mode: draft-model needs models on picolm, and {source.name} runs on {source.backend}: "
                "set engine.backend to picolm, take another model, or set speculation.mode to auto or off",
                code="no_draft_here",
                param="speculation.draft_model",
            )
    return DraftSpecification(
        name=draft.name,
        source=draft.source,
        sha256=choices.draft_sha256.lower(),
        target_sha256=choices.draft_target_sha256.lower(),
    )


def with_draft(needs: ModelNeeds, draft: ModelNeeds) -> ModelNeeds:
    """What a model and its draft will take together."""
    return msgspec.structs.replace(
        needs,
        state_bytes_per_token=needs.state_bytes_per_token + draft.state_bytes_per_token,
        weight_bytes=needs.weight_bytes + draft.weight_bytes,
    )
