"""Loads the toy. Its source is `toy`, or `toy:MICROSECONDS` for the time that a step shall take."""

from __future__ import annotations

from collections.abc import Iterator

from tripower.backends.toy.engine import ToyEngine
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine import DraftSpecification, LoadedModel, LoadSpecification, Progress
from tripower.runtime.kernel import ModelRefused
from tripower.runtime.speculation import DraftedEngine, DraftModel

DRAFT_COST = 0.1
"""What a step of a toy that guesses is taken to cost beside one of a toy that answers."""


class ToyBackend:
    name = "toy"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        _, _, microseconds = specification.source.partition(":")
        if microseconds and not microseconds.isdecimal():
            raise ModelRefused(f"a toy is called toy or toy:MICROSECONDS, not {specification.source}", param="source")
        progress("weights", 1.0)
        yield None
        if specification.draft is not None:
            yield _drafted(specification, specification.draft)
            return
        yield LoadedModel(
            ToyEngine(
                context=specification.context or 8192,
                sequences_max=specification.sequences_max,
                native=True,
                step_microseconds=int(microseconds or 0),
            ),
            ToyText(),
        )


def _drafted(specification: LoadSpecification, draft: DraftSpecification) -> LoadedModel:
    """A toy with a toy that guesses for it, and is always right. Steps are made in Python, since a native loop asks nobody."""
    if draft.source != "toy" or draft.sha256 or draft.target_sha256:
        raise ModelRefused(
            "a toy's draft is called toy, and neither has a digest: leave the other speculation.draft settings out",
            code="draft_target_mismatch",
            param="speculation.draft_model",
        )
    target, guessing = (
        ToyEngine(context=specification.context or 8192, sequences_max=specification.sequences_max) for _ in range(2)
    )
    model = DraftModel(guessing, step_cost=DRAFT_COST)
    return LoadedModel(DraftedEngine(target, model), ToyText(), model)
