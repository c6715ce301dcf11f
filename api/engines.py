"""Which engines there are, how each is reached without importing it, and which of them runs a file.

`auto` takes our own engine for every file that it accepts and llama.cpp for what it does not know, where that is installed; the reason is
kept with the choice and shown by `serve` and `doctor`. mistral.rs and remote servers are used only where they are named. An engine that
is asked for by name is used or refused, and never replaced.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec

from tripower.api.pull.model_format import detect_format
from tripower.backends.embedded.shape import folder_of, is_encoder, read_shape
from tripower.backends.model_file import is_complete_checkpoint
from tripower.backends.proxy import FORM, PREFIX, parse_upstream
from tripower.runtime.configuration import Configuration
from tripower.runtime.engine import Backend, DelegateBackend, LoadedDelegate, LoadSpecification, Progress
from tripower.runtime.host import ModelNeeds
from tripower.runtime.kernel.errors import InvalidConfiguration, InvalidRequest, ModelRefused

AUTO, PICOLM, LLAMACPP, MISTRALRS, PROXY, TOY = "auto", "picolm", "llamacpp", "mistralrs", "proxy", "toy"
EMBEDDED = "embedded"
"""Runs models that make embeddings. It is not chosen by name: no other engine runs them, and it runs no others."""
FILE_ENGINES = (PICOLM, LLAMACPP, MISTRALRS)
UNKNOWN_CONTEXT = 1 << 24
"""Tokens: no bound of ours, for a model whose header only another engine understands."""


class EngineChoice(msgspec.Struct, frozen=True):
    """A backend's name, and why it is this one."""

    backend: str
    reason: str


class MistralrsOnDemand:
    """The backend `mistralrs`, imported by its first load."""

    name = MISTRALRS

    async def open_delegate(self, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
        """See `MistralrsBackend.open_delegate`."""
        from tripower.backends.mistralrs.backend import MistralrsBackend

        return await MistralrsBackend().open_delegate(specification, progress)


class ProxyOnDemand:
    """The backend `proxy`, imported by its first load."""

    name = PROXY

    def __init__(self, configuration: Configuration) -> None:
        self._settings = configuration.proxy

    async def open_delegate(self, specification: LoadSpecification, progress: Progress) -> LoadedDelegate:
        """See `ProxyBackend.open_delegate`."""
        from tripower.backends.proxy.backend import ProxyBackend

        backend = ProxyBackend(allow_plain=self._settings.allow_plain, extensions=self._settings.extensions)
        return await backend.open_delegate(specification, progress)


def other_engines(configuration: Configuration) -> list[Backend | DelegateBackend]:
    """The engines that are not our own."""
    from tripower.backends.llamacpp import LlamacppBackend

    return [LlamacppBackend(gpu_layers=configuration.engine.gpu_layers), MistralrsOnDemand(), ProxyOnDemand(configuration)]


def is_toy(source: str) -> bool:
    """Whether a source is the built-in toy: `toy`, or `toy:MICROSECONDS` for the time that a step shall take."""
    return source.partition(":")[0] == TOY


def is_remote(source: str, wanted: str = AUTO) -> bool:
    """Whether a source is a model of another server: `proxy:https://…`, or a plain address where `proxy` is wanted."""
    return source.startswith(PREFIX) or (wanted == PROXY and source.startswith(("http://", "https://")))


def needs_file(source: str, wanted: str = AUTO) -> bool:
    """Whether a source stands for a file that has to be on this machine."""
    return not is_toy(source) and not is_remote(source, wanted)


def check_reference(source: str, wanted: str) -> None:
    """Raise `InvalidRequest` where the wanted backend cannot have anything to do with this kind of source."""
    if is_toy(source) and wanted not in (AUTO, TOY):
        raise _mismatch(f"the toy is an engine of its own and does not run on {wanted}", "leave out --backend")
    if is_remote(source, wanted) and wanted not in (AUTO, PROXY):
        raise _mismatch(f"{wanted} runs files, and this is a model of another server", "leave out --backend, or name proxy")
    if needs_file(source, wanted) and wanted == PROXY:
        raise _mismatch("the backend proxy asks other servers and runs no files", f"write {FORM}")
    if needs_file(source, wanted) and wanted == TOY:
        raise _mismatch("the toy runs no files", "the model's name is toy, or choose another backend")


def remote_source(source: str, configuration: Configuration) -> tuple[str, str]:
    """Name and canonical address of a remote model; the name is empty where the address names no model. Raises `InvalidRequest`."""
    upstream = parse_upstream(source, allow_plain=configuration.proxy.allow_plain)
    return upstream.model, upstream.text


def choose_engine(path: Path, what: str, wanted: str = AUTO) -> EngineChoice:
    """Who runs this file. Blocks for small reads. Raises `ModelRefused` naming what would help; `what` names the file there."""
    found = detect_format(path, what)
    if found == "safetensors" and is_complete_checkpoint(path):
        return _choose_for_checkpoint(path, what, wanted)
    if found != "gguf":
        raise ModelRefused(
            f"{what} is a {found} file, and no engine here runs those: choose a GGUF model, such as smollm2",
            code="unsupported_model_format",
        )
    if wanted == AUTO:
        return _choose_for_gguf(path)
    if problem := engine_problem(wanted):
        raise problem
    return EngineChoice(wanted, "asked for")


def _choose_for_checkpoint(path: Path, what: str, wanted: str) -> EngineChoice:
    if is_encoder(path):
        if wanted != AUTO:
            raise ModelRefused(
                f"{what} makes embeddings, and {wanted} runs no such model here: leave out --backend",
                code="unsupported_model_format",
            )
        read_shape(folder_of(path))
        return EngineChoice(EMBEDDED, "it makes embeddings")
    if wanted not in (AUTO, PICOLM):
        raise ModelRefused(
            f"{what} is a SafeTensors checkpoint, and only picolm runs those here, not {wanted}: leave out --backend",
            code="unsupported_model_format",
        )
    if refusal := picolm_refusal(path):
        raise refusal
    return EngineChoice(PICOLM, "our own engine knows this model" if wanted == AUTO else "asked for")


def _choose_for_gguf(path: Path) -> EngineChoice:
    refusal = picolm_refusal(path)
    if refusal is None:
        return EngineChoice(PICOLM, "our own engine knows this model")
    problem = engine_problem(LLAMACPP)
    if problem is None:
        return EngineChoice(LLAMACPP, f"our own engine does not run it: {refusal.message}")
    raise ModelRefused(
        f"{refusal.message}. llama.cpp may run it, but {problem.message}", code=refusal.code, param=refusal.param
    ) from refusal


def picolm_refusal(path: Path) -> ModelRefused | None:
    """Why our engine does not know what is in a file; None also for a file that is broken, which is for its load to say."""
    from tripower.api.plan import read_needs

    try:
        read_needs(str(path))
    except ModelRefused as refusal:
        return refusal if refusal.code.startswith("unsupported") else None
    return None


def engine_problem(backend: str) -> ModelRefused | None:
    """What keeps a backend from running files on this machine, with the cure; None when nothing does. Blocks for small reads."""
    if backend == LLAMACPP:
        from tripower.backends.llamacpp.pair import find_pair

        try:
            find_pair()
        except ModelRefused as problem:
            return problem
    if backend == MISTRALRS and find_spec("mistralrs") is None:
        return ModelRefused(
            "the backend mistralrs is not installed: run pip install 'tripower[mistralrs]'", code="backend_not_installed"
        )
    return None


def foreign_needs(path: Path, known: ModelNeeds | None) -> ModelNeeds:
    """What a file will take in an engine that keeps its weights as they are. `known` is what our own reader found, if it did."""
    size = path.stat().st_size
    if known is None:
        return ModelNeeds(context_max=UNKNOWN_CONTEXT, state_bytes_per_token=1, weight_bytes=size)
    return msgspec.structs.replace(known, weight_bytes=size)


def check_gpu_layers(configuration: Configuration, backends: set[str]) -> None:
    """Raise `InvalidConfiguration` where layers are asked onto an accelerator of an engine that has none."""
    layers = configuration.engine.gpu_layers
    without = sorted(backends - {LLAMACPP})
    if layers and without:
        raise InvalidConfiguration(
            f"engine.gpu_layers={layers}, and the engine {' and '.join(without)} puts no layers on an accelerator: set it to 0, or choose llamacpp",
            code="gpu_layers_unsupported",
        )


def _mismatch(why: str, cure: str) -> InvalidRequest:
    return InvalidRequest(f"{why}: {cure}", code="backend_mismatch")
