"""Makes a GGUF file resident in llama.cpp.

Loading goes from what is cheap to refuse to what is dear: the installed pair, its probe in a child process, the file's header, room
for the states, the text layer, and only then the weights. The text layer is ours, as the sampler is: llama.cpp only evaluates rows.
A first step on the finished engine must give finite logits. A failure anywhere leaves nothing behind.

Everything that needs numpy, cffi or the library is imported by the first load, so that naming this backend costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tripower.backends.refusing import refusing
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress
from tripower.runtime.kernel.errors import InvalidConfiguration, ModelRefused, TripowerError

if TYPE_CHECKING:
    from tripower.backends.gguf.reader import GgufFile
    from tripower.backends.llamacpp.engine import LlamacppEngine

ALL_LAYERS = -1


class LlamacppBackend:
    """A `Backend` for GGUF files through llama.cpp. `library` is used instead of the installed one, at one's own risk.

    `gpu_layers` is 0 for none, -1 for all; more than a build can do is refused at load.
    """

    name = "llamacpp"

    def __init__(self, *, library: Path | None = None, gpu_layers: int = 0) -> None:
        if gpu_layers < ALL_LAYERS:
            raise InvalidConfiguration(f"gpu_layers is {gpu_layers}: give -1 for all, 0 for none, or a number of layers")
        self._library = library
        self._gpu_layers = gpu_layers

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        """Yield None at boundaries and the model last. Raises `ModelRefused`.

        Blocks for a few milliseconds between boundaries, but for as long as llama.cpp takes while it reads and repacks the weights.
        """
        with refusing(specification.name):
            from tripower.backends.gguf.reader import open_gguf
            from tripower.backends.text.layer import GgufTextLayer

            with open_gguf(specification.source) as file:
                yield None
                text = GgufTextLayer(file)
                yield None
                engine = yield from self.load_engine(file, specification, progress)
            yield LoadedModel(engine, text)

    def load_engine(
        self, file: GgufFile, specification: LoadSpecification, progress: Progress
    ) -> Generator[None, None, LlamacppEngine]:
        """Yield None at boundaries, return an engine that has passed its self-test. Raises `ModelRefused`."""
        from tripower.backends.llamacpp.engine import LlamacppEngine
        from tripower.backends.llamacpp.library import open_library
        from tripower.backends.llamacpp.native import check_kind, load_model
        from tripower.backends.llamacpp.pair import find_pair
        from tripower.backends.llamacpp.probe import probe
        from tripower.backends.llamacpp.sizes import choose_context, state_bytes

        context = choose_context(file.metadata, specification)
        progress("engine", 0.0)
        pair = find_pair(self._library)
        report = yield from probe(pair)
        if self._gpu_layers and not report.gpu:
            raise ModelRefused(
                "this build of llama.cpp uses no GPU: leave gpu_layers at 0", code="gpu_layers_unsupported", param="gpu_layers"
            )
        library = open_library(pair)
        yield
        model = load_model(
            library, str(file.path), gpu_layers=self._gpu_layers, progress=lambda fraction: progress("weights", fraction)
        )
        try:
            check_kind(library, model)
        except BaseException:
            library.api.llama_model_free(model)
            raise
        engine = LlamacppEngine(
            library,
            model,
            architecture=str(file.metadata["general.architecture"]),
            context_max=context,
            sequences_max=specification.sequences_max,
            threads=specification.threads or _processors(),
            state_bytes_per_token=state_bytes(file.metadata),
        )
        try:
            yield
            if file.changed():
                raise ModelRefused(
                    f"{file.path} was replaced while it was loaded: load it again", code="source_changed", param=str(file.path)
                )
            _self_test(engine)
        except BaseException:
            engine.close()
            raise
        progress("self-test", 1.0)
        return engine


def _self_test(engine: LlamacppEngine) -> None:
    """Decode one token. Raises `ModelRefused` (`self_test_failed`) when that fails or the logits are not finite."""
    from tripower.runtime.engine import SamplingParameters, StepRow

    engine.open_sequence(0)
    try:
        engine.step([StepRow(0, 0, (0,), draw=True, sampling=SamplingParameters(temperature=0.0))])
    except TripowerError as error:
        raise ModelRefused(f"the model failed its self-test: {error.message}", code="self_test_failed") from error
    engine.close_sequence(0)


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
