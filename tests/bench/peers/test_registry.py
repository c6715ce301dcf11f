"""How peers are started."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tripower.bench.peers.registry import PEERS, peer_command
from tripower.bench.serving.cells import Plan
from tripower.bench.serving.command import our_command


@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_peers_child_is_told_everything(name: str) -> None:
    command = peer_command(name, Path("/models/a file.gguf"), threads=3, parallel=16, context=2300)
    module = command[command.index("-m") + 1]
    assert importlib.util.find_spec(module) is not None
    options = dict(zip(command[command.index("-m") + 2 :: 2], command[command.index("-m") + 3 :: 2], strict=True))
    assert options == {
        "--model": "/models/a file.gguf",
        "--port": "{port}",
        "--threads": "3",
        "--parallel": "16",
        "--context": "2300",
    }


def test_our_own_llamacpp_is_measured_against_its_server() -> None:
    own = peer_command("own-llamacpp", Path("m"), threads=1, parallel=1, context=1)
    assert own == peer_command("llamacpp", Path("m"), threads=1, parallel=1, context=1)
    assert PEERS["own-llamacpp"].our_backend == "llamacpp"


@pytest.mark.parametrize(("backend", "told"), [(None, []), ("llamacpp", ["--backend", "llamacpp"])])
def test_our_server_is_told_its_backend_threads_and_seats(backend: str | None, told: list[str]) -> None:
    plan = Plan(model="smollm2", peer=None, concurrency=(1,), tokens=8, rounds=1, prefill_tokens=64, threads=3, backend=backend)
    command = our_command(plan, 16)
    assert command[command.index("serve") + 1] == "smollm2"
    assert [word for word in command if word in ("--backend", "llamacpp")] == told
    assert {"engine.threads=3", "scheduler.batch_members=16"} <= set(command)
