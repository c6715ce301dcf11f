"""Loads the toy. Its source is `toy`, or `toy:MICROSECONDS` for the time that a step shall take."""

from __future__ import annotations

from collections.abc import Iterator

from tripower.backends.toy.engine import ToyEngine
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress
from tripower.runtime.kernel import ModelRefused


class ToyBackend:
    name = "toy"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        _, _, microseconds = specification.source.partition(":")
        if microseconds and not microseconds.isdecimal():
            raise ModelRefused(f"a toy is called toy or toy:MICROSECONDS, not {specification.source}", param="source")
        progress("weights", 1.0)
        yield None
        yield LoadedModel(
            ToyEngine(
                context=specification.context or 8192,
                sequences_max=specification.sequences_max,
                native=True,
                step_microseconds=int(microseconds or 0),
            ),
            ToyText(),
        )
