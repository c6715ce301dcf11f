"""Whether a request's tokens are guessed, and by what: its drafter is made here, beside the loop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import trio

from tripower.runtime.engine import EngineInfo, SamplingParameters
from tripower.runtime.engine.contract import SPECULATION
from tripower.runtime.engine.drafting import Drafter
from tripower.runtime.engine.row_costs import costs_of
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.speculation import DraftModel, SpeculationSettings, Strategy, make_drafter, make_model_drafter
from tripower.runtime.speculation.settings import DRAFT_BOUND

INLINE_TOKENS = 512
"""A shorter prompt is indexed within a millisecond: that is not worth a thread."""
TOKENS_MIN = 3
"""A shorter answer has no step that a guess could save: its first token comes with the prompt, and a step brings one in any case."""
NEUTRAL = SamplingParameters()


async def new_drafter(
    settings: SpeculationSettings | None,
    info: EngineInfo,
    prompt: Sequence[int],
    max_tokens: int,
    draft: DraftModel | None = None,
    sampling: SamplingParameters = NEUTRAL,
) -> Drafter | None:
    """A drafter for one sequence; None where nothing is to be guessed. Blocks while a worker thread indexes a long prompt.

    `auto` guesses where that cannot change an answer. `draft` is the draft model beside the engine, if there is one, and `sampling`
    how the sequence is drawn, which only a draft model has to know. Raises `InvalidRequest` for a strategy that was named and cannot be
    had.
    """
    if settings is None or not guesses(settings, info) or max_tokens < TOKENS_MIN:
        return None
    costs = costs_of(info.row_costs)
    if settings.strategy is Strategy.DRAFT_MODEL:
        if draft is None:
            raise _unsupported(info)
        return make_model_drafter(settings, prompt, costs, draft, sampling)
    if len(prompt) <= INLINE_TOKENS:
        return make_drafter(settings, prompt, costs)
    return await trio.to_thread.run_sync(make_drafter, settings, prompt, costs, abandon_on_cancel=True)


def narrowed(settings: SpeculationSettings | None, draft_max: int | None) -> SpeculationSettings | None:
    """What a request's own bound leaves of the service's settings. Raises `InvalidRequest` for one that is none."""
    if draft_max is None:
        return settings
    if not 0 <= draft_max <= DRAFT_BOUND:
        raise InvalidRequest(f"draft_max: {draft_max} is out of range; use 0 to {DRAFT_BOUND}", param="draft_max")
    if settings is None or draft_max == 0:
        return None
    return msgspec.structs.replace(settings, draft_max=min(draft_max, settings.width_max))


def guesses(settings: SpeculationSettings, info: EngineInfo) -> bool:
    """Whether these settings come to guesses on this engine. Raises as `new_drafter` does."""
    match settings.strategy:
        case Strategy.OFF:
            return False
        case Strategy.AUTO:
            return info.determinism == "exact" and SPECULATION not in info.unsupported
    if SPECULATION in info.unsupported:
        raise _unsupported(info)
    return True


def _unsupported(info: EngineInfo) -> InvalidRequest:
    return InvalidRequest(
        f"the engine {info.backend} cannot guess tokens here: set speculation.mode to auto or off, or ask a model on picolm",
        code="unsupported_by_engine",
        param="speculation",
    )
