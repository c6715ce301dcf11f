"""The console of a program that embeds tripower: there if it was asked for, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tripower import ConsoleSettings, InvalidConfiguration, open_runtime
from tripower.api.console.client import ConsoleRefused, open_console
from tripower.runtime.configuration import Configuration
from tripower.runtime.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory of the test."""
    monkeypatch.setenv("TRIPOWER_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


async def test_there_is_none_unless_it_is_asked_for(folder: Path, store: Store) -> None:
    async with open_runtime(Configuration(console=ConsoleSettings(enabled=True)), models=["toy"], store=store):
        assert folder.name not in os.listdir(folder.parent)


async def test_a_program_can_be_looked_into_while_it_works(folder: Path, store: Store) -> None:
    async with open_runtime(models=["toy"], store=store, console=True), open_console() as console:
        assert (console.hello.pid, console.hello.url, console.hello.models) == (os.getpid(), "", ("toy",))
        assert await console.call("help")
        with pytest.raises(ConsoleRefused):  # a program is not ended from outside
            await console.call("drain")
    assert os.listdir(folder) == []


async def test_it_is_where_the_program_says(tmp_path: Path, store: Store) -> None:
    async with open_runtime(models=["toy"], store=store, console=tmp_path / "s"), open_console(str(tmp_path / "s")) as console:
        assert console.path == tmp_path / "s"


@pytest.mark.parametrize("where", ["127.0.0.1:9000", "/nowhere/s"])
async def test_a_place_that_cannot_be_is_refused(where: str, store: Store) -> None:
    with pytest.raises(InvalidConfiguration):
        async with open_runtime(models=["toy"], store=store, console=where):
            pass
