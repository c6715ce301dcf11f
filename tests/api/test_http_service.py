"""Which model is meant by a request that names none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tripower.actors.models import ModelCard
from tripower.api.engines import EMBEDDED, PICOLM
from tripower.api.http.observe.keepers import Keepers
from tripower.api.http.service import Service
from tripower.runtime.configuration import SchedulerSettings, ServerSettings
from tripower.runtime.kernel import InvalidRequest


def service(backends: dict[str, str], *, named: tuple[str, ...] = ()) -> Service:
    """`named` are the models that were named at the start."""

    async def models() -> list[ModelCard]:
        return [
            ModelCard(name=name, source="", state="loaded", backend=backend, created=0, pinned=name in named)
            for name, backend in backends.items()
        ]

    runtime: Any = SimpleNamespace(models=models)
    return Service(runtime, ServerSettings(), SchedulerSettings(), Keepers())


@pytest.mark.parametrize(
    ("backends", "meant"),
    [
        ({"writer": PICOLM}, "writer"),
        ({"writer": PICOLM, "encoder": EMBEDDED}, "writer"),  # lm-eval asks for tokens without a name
        ({"encoder": EMBEDDED}, "encoder"),
    ],
)
async def test_the_only_model_that_writes_is_meant(backends: dict[str, str], meant: str) -> None:
    assert await service(backends).only_model() == meant


@pytest.mark.parametrize("backends", [{}, {"one": PICOLM, "two": PICOLM}, {"one": EMBEDDED, "two": EMBEDDED}])
async def test_where_several_could_be_meant_a_name_is_asked_for(backends: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=f"{len(backends)} are served") as refused:
        await service(backends).only_model()
    assert refused.value.param == "model"


async def test_a_model_that_was_named_at_the_start_goes_on_being_meant_when_others_are_loaded() -> None:
    assert await service({"one": PICOLM, "two": PICOLM}, named=("one",)).only_model() == "one"
    assert await service({"one": PICOLM, "encoder": EMBEDDED, "two": PICOLM}, named=("one", "encoder")).only_model() == "one"
    with pytest.raises(InvalidRequest, match="2 are served"):
        await service({"one": PICOLM, "two": PICOLM, "three": PICOLM}, named=("one", "two")).only_model()
