"""Cold models that several wait for, and files that cannot be loaded the first time."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.api.serving import serving_toy, until
from tests.api.test_checkpoint_folders import edit
from tests.robustness.routes import ROUTES
from tripower.actors.models import ModelSource
from tripower.actors.runtime import Runtime, toy_plan
from tripower.backends.picolm.backend import PicolmBackend
from tripower.backends.toy import ToyBackend
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress


class HeldBackend(ToyBackend):
    """Loads that stop until they may go on."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.loads = 0

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        if specification.name == "cold":
            self.loads += 1
            while not self.go.wait(0.002):
                yield None
        yield from super().load(specification, progress)


def waiting(runtime: Runtime) -> int:
    (registry,) = (actor for actor in runtime.statistics() if actor.name == "registry")
    return registry.pending


# BB-073
@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.rpartition("v1/")[2])
async def test_one_who_hangs_up_during_a_load_leaves_it_to_the_others(route: Any, stream: bool, leaver: int) -> None:
    held = HeldBackend()
    sources = (*toy_plan().sources, ModelSource(name="cold", source="toy", backend="toy"))
    async with serving_toy(toy_plan(backends={"toy": held}, sources=sources)) as server:
        clients = [await server.open_client() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.send_request(route.path, route.body(model="cold", stream=stream))
            await until(lambda count=number + 1: waiting(server.actors) == count)  # type: ignore[misc]
        await clients.pop(leaver).stream.aclose()
        await until(lambda: waiting(server.actors) == 2)
        held.go.set()
        for client in clients:
            assert (await client.read_answer()).status == 200
            await client.stream.aclose()
        assert held.loads == 1


# BB-074
@pytest.mark.parametrize("damage", ["cut short", "wrong numbers", "absent"])
async def test_after_a_load_that_failed_its_name_is_free_and_nothing_is_held(damage: str, folder: Path, tmp_path: Path) -> None:
    source, good = tmp_path / "m", folder
    plan = toy_plan(
        backends={"toy": ToyBackend(), "picolm": PicolmBackend("torch")},
        sources=(*toy_plan().sources, ModelSource(name="m", source=str(source), backend="picolm")),
    )
    process = psutil.Process()
    route = ROUTES[1]
    async with serving_toy(plan) as server:
        await server.ask(route.path, route.body())
        before = process.num_fds()
        for _ in range(3):
            _put(source, good, damage)
            answer = await server.ask(route.path, route.body(model="m"))
            assert answer.status == 503 and answer.error["message"], answer
            card = (await server.ask("/v1/models/m")).json
            assert card["status"]["value"] == "unloaded"
        gc.collect()
        await server.wait_closed()
        assert process.num_fds() <= before
        assert not [mapping for mapping in process.memory_maps() if mapping.path.startswith(str(source))]
        _put(source, good)
        assert (await server.ask(route.path, route.body(model="m"))).status == 200


def _put(source: Path, good: Path, damage: str = "") -> None:
    """The good folder as the source, damaged like this."""
    if source.exists():
        shutil.rmtree(source)
    if damage != "absent":
        shutil.copytree(good, source)
    if damage == "cut short":
        weights = source / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
    elif damage == "wrong numbers":
        edit(source, num_hidden_layers=2)
