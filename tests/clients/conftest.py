"""What the tests with other people's clients share: their interpreter, and `tripower serve` as a process with API keys.

The clients bring plugins of pytest and pins of their own, so they are not beside the suite but in an environment `<this one>-clients`,
which `make long` fills from the extra `clients`. `TRIPOWER_TEST_CLIENTS` names another interpreter. Every client runs in a child process:
a script of `scripts/` uses it as its users do and prints as JSON what it saw, and a test says what must be in there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.api.children import running

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "TRIPOWER_TEST_CLIENTS"
PATIENCE = 240.0
"""Seconds after which a client counts as hung: never reached by a test that passes."""
KEY, LIMITED_KEY = "tp-of-the-tests-1", "tp-of-the-tests-2"
"""The second one may have one request at a time."""
FOREIGN = (
    "OPENAI_",
    "ANTHROPIC_",
    "LITELLM_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "HF_",
    "TRIPOWER_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
)
"""Variables that clients read and that a test does not leave to chance."""
PRIVATE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
"""Nothing is asked of anybody but the server under test."""
PACKAGES = ("openai", "anthropic", "llm", "langchain_openai", "litellm", "schemathesis", "lm_eval")
COMPLETE = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {PACKAGES})))"
"""An installation that was broken off has some of them."""


class Facts(dict[str, Any]):
    """What a script saw, by use. A use that raised fails whoever looks at it, with the client's traceback."""

    def __getitem__(self, use: str) -> Any:
        seen = super().__getitem__(use)
        assert not (isinstance(seen, dict) and "traceback" in seen), seen["traceback"]
        return seen


@attrs.frozen
class Served:
    """A server and the keys that it knows."""

    url: str
    key: str = KEY
    limited_key: str = LIMITED_KEY


@attrs.frozen
class Clients:
    """The interpreter that has the clients, and a home that nothing of the user's is in."""

    python: Path
    home: Path

    def environment(self, **changes: str) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.upper().startswith(FOREIGN)}
        return {**plain, **PRIVATE, "HOME": str(self.home), "PYTHONPATH": str(ROOT), **changes}

    def run(
        self, *arguments: str, variables: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter to its end, in the clients' home or another folder."""
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=folder or self.home,
            env=self.environment(**(variables or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def facts(self, script: str, *servers: Served) -> Facts:
        """What the script saw of these servers."""
        told = [json.dumps(attrs.asdict(served)) for served in servers]
        finished = self.run("-m", f"tests.clients.scripts.{script}", *told)
        assert finished.returncode == 0, finished.stderr[-4000:]
        return Facts(json.loads(finished.stdout.splitlines()[-1]))


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    """Skips the test where the clients are not installed."""
    python = Path(os.environ.get(VARIABLE) or f"{sys.prefix}-clients/bin/python")
    if not python.exists() or subprocess.run([python, "-c", COMPLETE], capture_output=True, check=False).returncode:
        pytest.skip(
            "the extra `clients` is not installed beside this environment: `make long` does it where an index is reachable"
        )
    return Clients(python, tmp_path_factory.mktemp("client"))


@contextmanager
def serving(home: Path, kernels: Path, *arguments: str) -> Iterator[Served]:
    """`tripower serve` on a free port with both keys, once it is ready."""
    keys = home / "keys.toml"
    limits = {KEY: "admin = true", LIMITED_KEY: "concurrency = 1"}
    keys.write_text(
        "\n".join(f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{limit}' for key, limit in limits.items())
    )
    keys.chmod(0o600)
    command = ("serve", *arguments, "--port", "0", "--set", f"auth.keys_file={keys}")
    with running(home, *command, variables={"TRIPOWER_KERNEL_CACHE": str(kernels)}) as child:
        match = re.search(r"http://[^\s]+", child.read_until("curl "))
        assert match is not None
        yield Served(match[0])


@pytest.fixture(scope="session")
def served(
    smollm2_path: Path, minilm_path: Path, kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """SmolLM2 and MiniLM."""
    models = (f"smollm2={smollm2_path}", f"minilm={minilm_path}")
    with serving(tmp_path_factory.mktemp("served"), kernel_cache, *models) as server:
        yield server


@pytest.fixture(scope="session")
def crowded(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The toy with one seat, no waiting room and two milliseconds a token: refusals and cancels happen when a test wants them."""
    limits = ("--set", "scheduler.batch_members=1", "--set", "scheduler.waiting=0")
    with serving(tmp_path_factory.mktemp("crowded"), kernel_cache, "slow=toy:2000", *limits) as server:
        yield server


@pytest.fixture(scope="session")
def quick(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The toy as fast as it can."""
    with serving(tmp_path_factory.mktemp("quick"), kernel_cache, "toy") as server:
        yield server
