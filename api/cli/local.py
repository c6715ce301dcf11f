"""A model in this process, pulled first when it is not on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tripower.actors.dialogue import Failed, GenerationFinished
from tripower.actors.models import ModelSource, ReadyModel
from tripower.actors.runtime import RuntimePlan
from tripower.api.cli.answers import TEMPERATURE, Question, Show, Summary
from tripower.api.cli.progress import progress_display
from tripower.api.embedding import EmbeddedRuntime, open_planned
from tripower.api.engines import check_reference
from tripower.api.plan import find_source, for_one_conversation, make_plan, needs_file
from tripower.api.pull import display_name, obtain
from tripower.api.pull.sources import split_name
from tripower.runtime.configuration import Configuration
from tripower.runtime.engine import SamplingParameters
from tripower.runtime.kernel import deadline_after, within
from tripower.runtime.store import Store


class LocalService:
    """A `Service` of the runtime in this process."""

    def __init__(self, runtime: EmbeddedRuntime, ready: ReadyModel) -> None:
        self.model = ready.name
        self._runtime = runtime
        self._defaults = {"temperature": TEMPERATURE} if ready.recommended == SamplingParameters() else {}

    async def answer(self, question: Question, show: Show) -> Summary:
        options = {**self._defaults, **question.options, "timeout": question.timeout}
        if question.prompt is not None:
            generation = self._runtime.complete(self.model, question.prompt, **options)
        else:
            generation = self._runtime.chat(self.model, question.messages, **options)
        async with generation:
            while True:
                for event in await generation.receive():
                    if isinstance(event, Failed):
                        raise event.error()
                    show(event.text)
                    if isinstance(event, GenerationFinished):
                        return summary_of(event, generation.seed)


def summary_of(finished: GenerationFinished, seed: int) -> Summary:
    """The figures of a complete answer."""
    usage, timings = finished.usage, finished.timings
    later = usage.completion_tokens - 1
    return Summary(
        finish_reason=finished.reason,
        prompt_tokens=usage.prompt_tokens,
        tokens=usage.completion_tokens,
        first_token_seconds=timings.wait_seconds + timings.prefill_seconds,
        tokens_per_second=later / timings.decode_seconds if later > 0 and timings.decode_seconds > 0 else None,
        seed=seed,
    )


async def obtain_model(reference: str, store: Store, configuration: Configuration, *, quiet: bool) -> None:
    """Make sure that a model is on this machine, with progress, if that is where it runs. Raises what `pull` raises."""
    _, source = split_name(reference)
    if needs_file(source, configuration.engine.backend):
        check_reference(source, configuration.engine.backend)
        with progress_display(quiet=quiet) as display:
            await obtain(reference, store=store, progress=display.pulling(source))


@asynccontextmanager
async def open_local(
    reference: str, configuration: Configuration, *, quiet: bool, timeout: float | None = None
) -> AsyncIterator[LocalService]:
    """The model, loaded, for the length of the block; `timeout` bounds the load. Raises what pulling or loading raises."""
    store = Store()
    await obtain_model(reference, store, configuration, quiet=quiet)
    with progress_display(quiet=quiet) as display:
        progress = display.loading(short_name(reference, store, configuration))
        progress("engine", 0.0)
        source, plan = await trio.to_thread.run_sync(_plan, reference, store, for_one_conversation(configuration))
        async with open_planned(plan) as runtime:
            with within(deadline_after(timeout)):
                ready = await runtime.load(source.name, progress=progress)
            display.close()
            yield LocalService(EmbeddedRuntime(runtime), ready)


def short_name(reference: str, store: Store, configuration: Configuration) -> str:
    """What to call a model before it is known to be one."""
    name, source = split_name(reference)
    return name or (display_name(reference, store) if needs_file(source, configuration.engine.backend) else source)


def _plan(reference: str, store: Store, configuration: Configuration) -> tuple[ModelSource, RuntimePlan]:
    source = find_source(reference, store, configuration)
    return source, make_plan(configuration, [source], store=store)
