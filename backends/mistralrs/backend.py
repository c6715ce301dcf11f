"""Loads a GGUF file into a `Runner` of mistral.rs.

What the wheel 0.9.5 does on processors, each tried with it: the load holds the interpreter lock (0.6 s for SmolLM2-135M, 6 s for
Gemma-3-270M), so that everything else in the process stands still; asking and streaming do not. Several prompts of one length that are
evaluated together fail ("input tensor is not contiguous"), so one sequence runs at a time. The tokenizer and the chat template come
out of the file, and nothing is looked for on the network: its hub client is told to stay offline before it is imported.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tripower.backends.gguf.metadata import require_string
from tripower.backends.gguf.reader import open_gguf
from tripower.backends.mistralrs.engine import MistralrsEngine
from tripower.runtime.engine import EngineInfo, LoadedDelegate, LoadSpecification, Progress
from tripower.runtime.kernel import ModelRefused, run_blocking

SEQUENCES_MAX = 1
"""See the module: more would fail now and then."""
TEMPLATE_KEY = "tokenizer.chat_template"


class MistralrsBackend:
    """See the module."""

    name = "mistralrs"

    async def open_delegate(self, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
        """See `DelegateBackend`. A cancellation waits for the end of the load. Raises `ModelRefused`."""
        check_installed()
        progress("weights", 0.0)
        engine = await run_blocking(lambda: load(specification))
        progress("weights", 1.0)
        return LoadedDelegate(engine)


def check_installed() -> None:
    """Raise `ModelRefused` with the command that helps when the wheel is missing."""
    if find_spec("mistralrs") is None:
        raise ModelRefused(
            "the backend mistralrs is not installed: run pip install 'tripower[mistralrs]'", code="backend_not_installed"
        )


def load(specification: LoadSpecification) -> MistralrsEngine:
    """The engine. Blocks for the whole load. Raises `ModelRefused`, also for what is no GGUF file."""
    path = Path(specification.source)
    with open_gguf(path) as file:
        architecture = require_string(file.metadata, "general.architecture")
        has_template = TEMPLATE_KEY in file.metadata
        elements = sum(tensor.elements for tensor in file.tensors.values())
    runner = open_runner(path, specification.threads)
    trained = runner.max_sequence_length() or 0
    if specification.context not in (0, trained):
        raise ModelRefused(
            f"the backend mistralrs gives every answer the whole context of its model, here {trained}, and engine.context is "
            f"{specification.context}: leave it at 0",
            code="unsupported_by_engine",
            param="engine.context",
        )
    info = EngineInfo(
        backend=MistralrsBackend.name,
        architecture=architecture,
        context_max=trained,
        vocabulary_size=0,
        sequences_max=SEQUENCES_MAX,
        parameters=elements,
        weight_bytes=path.stat().st_size,
        threads=specification.threads,
    )
    return MistralrsEngine(runner, info, chat=has_template)


def open_runner(path: Path, threads: int) -> Any:
    """A runner on this file. The process's environment is what the library is told through; what a user has set there stays."""
    for variable, value in (("HF_HUB_OFFLINE", "1"), ("RAYON_NUM_THREADS", str(threads)), ("RUST_LOG", "error")):
        os.environ.setdefault(variable, value)
    try:
        from mistralrs import Runner, Which

        source: Any = Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
        return Runner(which=source, max_seqs=SEQUENCES_MAX, prefix_cache_n=0, token_source="none")
    except BaseException as error:  # a ValueError for nearly everything; a panic in Rust is no Exception
        raise ModelRefused(f"mistral.rs cannot load {path.name}: {first_line(error)}", code="model_refused") from error


def first_line(error: BaseException) -> str:
    """What the library says, without the Rust backtrace behind it."""
    text = re.split(r"\n\s*0: ", str(error), maxsplit=1)[0]
    return " ".join(text.split())[:300] or type(error).__name__
