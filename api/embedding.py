"""tripower inside a program that already runs Trio: no listener, no signal handler, nothing global.

    async with tripower.open_runtime(models=["smollm2"]) as runtime:
        async for event in runtime.chat("smollm2", [{"role": "user", "content": "Hello!"}]):
            print(event.text, end="")

It is the runtime that the HTTP service stands on, with ordinary Trio cancellation in place of headers and disconnects: whatever is
cancelled frees its seat at the next step. Two runtimes in one process share nothing but the devices' threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypedDict, Unpack

import attrs
import msgspec
import trio

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.embedding import WHOLE, EmbeddingRequest, Embeddings
from tripower.actors.generation import Generation
from tripower.actors.models import ModelCard
from tripower.actors.runtime import Health, Runtime, RuntimePlan, open_actors
from tripower.api.embedding_options import format_of, tools_of
from tripower.api.plan import find_any, find_source, make_plan
from tripower.runtime.configuration import Configuration, check_configuration, nearest
from tripower.runtime.engine import ChatMessage, OutputFormat, Progress, ToolChoice, ToolDefinition
from tripower.runtime.kernel import NEVER, ActorStatistics, InvalidRequest, deadline_after
from tripower.runtime.store import Store

SEEDS = 2**64
NOT_OPTIONS = frozenset({"model", "messages", "prompt", "sampling", "chat"})
"""Fields of a request that are put together here."""


class GenerationOptions(TypedDict, total=False):
    """What `chat` and `complete` understand. What is absent or None takes the model's recommendation, else OpenAI's default."""

    max_tokens: int | None
    """Absent: the room left in the context for a conversation, 16 for a plain prompt. 0 evaluates the prompt only."""
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float]
    seed: int | None
    """64 bits, signed or not; absent: a random one, which `Generation.seed` tells."""
    stop: str | Sequence[str]
    """The answer ends before the first of these."""
    stop_token_ids: Sequence[int]
    """Tokens that end the answer like the model's own end tokens."""
    min_tokens: int
    """No end token is drawn before there are so many."""
    ignore_eos: bool
    logprobs: int | None
    """Alternatives to tell of at each generated token, 0 to 20: `TokenChunk.logprobs`."""
    prompt_logprobs: int | None
    """The same at each token of the prompt: one `PromptScored`."""
    format: OutputFormat | Mapping[str, Any] | None
    """What the answer has to look like: `JsonSchemaFormat(schema)`, OpenAI's `response_format`, or a JSON schema as it is."""
    tools: Sequence[ToolDefinition | Mapping[str, Any]]
    """Functions that may be called: `ToolDefinition`s, their fields, or OpenAI's form. `Generation.message` tells of calls."""
    tool_choice: ToolChoice | Mapping[str, Any] | str
    """`"auto"`, `"none"`, `"required"`, or a `ToolChoice` that names one."""
    template_arguments: Mapping[str, Any]
    """Further variables of the chat template, such as `enable_thinking`."""
    continue_final_message: bool
    """The answer goes on where the last message, the assistant's, ends."""
    progress: bool
    """Whether `PromptProgress` is wanted while the prompt is evaluated."""
    prompt_cache_key: str | None
    """Evaluated prompts are shared only among the requests with this key."""
    cache_prompt: bool
    """False: none is reused and none kept. Neither changes the answer."""
    priority: int
    """-100 to 100; higher goes first."""
    deadline: float | None
    """Absolute, on Trio's clock. It bounds loading, waiting and generating."""
    timeout: float | None
    """The same in seconds from the call on; the earlier one counts."""


OPTIONS = (
    {*GenerationOptions.__annotations__, *GenerationRequest.__struct_fields__, *SamplingChoices.__struct_fields__}
    - NOT_OPTIONS
)  # fmt: skip
"""Every option by name; some of the request's fields are for programs that stand between a caller and the runtime."""


class EmbeddedRuntime:
    """What `open_runtime` gives. All methods are for the Trio loop that opened it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        """The whole runtime, as the HTTP service uses it."""

    def chat(
        self, model: str, messages: Iterable[ChatMessage | Mapping[str, Any]], **options: Unpack[GenerationOptions]
    ) -> Generation:
        """The answer to a conversation; nothing happens before it is entered or iterated over.

        Raises `InvalidRequest` for messages or options that make no sense. See `Generation` for what can be raised later.
        """
        return self._generate(model, options, messages=_messages(messages))

    def complete(self, model: str, prompt: str | Sequence[int], **options: Unpack[GenerationOptions]) -> Generation:
        """The continuation of a text, or of token ids. Otherwise like `chat`."""
        return self._generate(model, options, prompt=prompt if isinstance(prompt, str) else tuple(prompt))

    async def embed(
        self,
        model: str,
        input: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        truncate: bool | int = False,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> Embeddings:
        """Vectors of unit length for texts or rows of token ids, float32 [inputs, dimensions], in the order of the inputs. Blocks.

        `truncate` lets the end of a longer input be lost: to what the model takes, or to a number of tokens. Raises `InvalidRequest`
        naming the input or option, and what `load` and a full queue raise. Cancelling it frees the seat at the next piece of work.
        """
        shortened = {True: WHOLE, False: None}[truncate] if isinstance(truncate, bool) else truncate
        fields = {"model": model, "input": input, "dimensions": dimensions, "truncate": shortened}
        try:
            request = msgspec.convert(fields, EmbeddingRequest)  # lists and tuples alike
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"an option cannot be used: {error}") from error
        return await self.runtime.embed(request, deadline=earliest(deadline, timeout))

    def _generate(self, model: str, options: GenerationOptions, **what: Any) -> Generation:
        given: dict[str, Any] = dict(options)
        deadline, timeout = given.pop("deadline", None), given.pop("timeout", None)
        deadline = earliest(deadline, timeout)
        return self.runtime.generate(make_request(model, given, **what), deadline=deadline)

    async def load(
        self, model: str, *, deadline: float = NEVER, timeout: float | None = None, progress: Progress | None = None
    ) -> ModelCard:
        """Wait until a model is resident; many may ask, it is loaded once. Blocks.

        `progress` is called with a stage and the fraction done, on the thread that loads. Raises `NotFound` with the command that
        fetches the model, `ModelRefused` when its file cannot be used, `DeadlineExceeded`.
        """
        await self.runtime.load(model, deadline=min(deadline, deadline_after(timeout)), progress=progress)
        return next(card for card in await self.models() if card.name == model)

    async def models(self) -> Sequence[ModelCard]:
        """What was named or asked for so far, and its state."""
        return await self.runtime.models()

    def health(self) -> Health:
        """`ok`, `loading` or `failing`, and why. Synchronous."""
        return self.runtime.health()

    def statistics(self) -> list[ActorStatistics]:
        """Every actor, parents before children. Synchronous."""
        return self.runtime.statistics()


def earliest(deadline: Any, timeout: Any) -> float:
    """The deadline that an absolute one and a number of seconds from now make. Raises `InvalidRequest` for what is no number."""
    if any(
        seconds is not None and (not isinstance(seconds, int | float) or math.isnan(seconds)) for seconds in (deadline, timeout)
    ):
        raise InvalidRequest("a deadline is a number of seconds", param="deadline")
    return min(NEVER if deadline is None else deadline, deadline_after(timeout))


@asynccontextmanager
async def open_runtime(
    configuration: Configuration | None = None,
    *,
    models: Iterable[str] = (),
    store: Store | None = None,
    progress: Progress | None = None,
    console: bool | str | os.PathLike[str] = False,
) -> AsyncIterator[EmbeddedRuntime]:
    """A runtime for the length of the block; leaving it ends everything in order, also when cancelled.

    `configuration` is taken as it is: no file and no environment is read. Models named here or there are loaded before the block
    begins, and `progress` is told (see `EmbeddedRuntime.load`); others load when they are first asked for. A reference is what
    `tripower run` understands, but nothing is fetched: what is not on this machine raises `NotFound` with the command that pulls it.
    `console` lets `tripower console` look inside: True at the usual place for a socket, or a path of one.
    Raises `InvalidConfiguration`, `InvalidRequest`, `NotFound` and `ModelRefused` before anything has been started or, after a failed
    load, after everything has ended again.
    """
    configuration = check_configuration(Configuration() if configuration is None else configuration)
    references = tuple(dict.fromkeys([*configuration.models, *models]))
    store = store or Store()
    plan = await trio.to_thread.run_sync(_plan, configuration, references, store)
    with _opened_console(console) as start_console:
        async with open_planned(plan) as runtime:
            models = [source.name for source in plan.sources]
            start_console(runtime, python=configuration.console.python, models=models)
            for name in models:
                await runtime.load(name, progress=progress)
            yield EmbeddedRuntime(runtime)


@contextmanager
def _opened_console(where: bool | str | os.PathLike[str]) -> Iterator[Callable[..., object]]:
    """What starts the console on a runtime; its socket is there for the length of the block, if it is wanted at all."""
    if where is False:
        yield lambda runtime, **options: None
        return
    from tripower.api.console.actor import start_console  # knows the HTTP service, which nobody else here needs
    from tripower.api.console.listening import library_console

    with library_console(where) as opened:
        yield partial(start_console, opened=opened)


def _plan(configuration: Configuration, references: Sequence[str], store: Store) -> RuntimePlan:
    sources = [attrs.evolve(find_source(reference, store, configuration), pinned=True) for reference in references]
    return make_plan(configuration, sources, find_model=find_any(store, configuration), store=store)


@asynccontextmanager
async def open_planned(plan: RuntimePlan) -> AsyncIterator[Runtime]:
    """`open_actors` that lets the block's own exception through as it is, rather than in an exception group."""
    error: BaseException | None = None
    try:
        async with open_actors(plan) as runtime:
            try:
                yield runtime
            except BaseException as caught:  # noqa: BLE001 - every one, to be raised again below
                error = caught  # the actors end as after a block without an error
    except BaseExceptionGroup as group:
        _, others = group.split(trio.Cancelled)
        if others is not None or error is None:
            raise
    if error is not None:
        raise error


def _messages(messages: Iterable[ChatMessage | Mapping[str, Any]]) -> tuple[ChatMessage, ...]:
    if isinstance(messages, str | Mapping | ChatMessage):
        raise InvalidRequest(
            'a conversation is a list of messages, as in [{"role": "user", "content": "Hello!"}]; `complete` continues a text',
            param="messages",
        )
    try:
        return tuple(
            message if isinstance(message, ChatMessage) else msgspec.convert(dict(message), ChatMessage) for message in messages
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidRequest(f"a message is a role and a content: {error}", param="messages") from error


def make_request(
    model: str,
    options: Mapping[str, Any],
    *,
    messages: tuple[ChatMessage, ...] | None = None,
    prompt: str | tuple[int, ...] | None = None,
) -> GenerationRequest:
    """The request that these options stand for. Raises `InvalidRequest` naming the option that is unknown or of the wrong type."""
    sampling = set(SamplingChoices.__struct_fields__)
    _check_names(options)
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if isinstance(given.get("logit_bias"), Mapping):
        given["logit_bias"] = tuple(given["logit_bias"].items())
    if given.get("top_k") == -1:  # as over HTTP: all of them
        given["top_k"] = 0
    if "tools" in given:
        given["tools"] = tools_of(given["tools"])
    if "format" in given:
        given["format"] = format_of(given["format"])
    fields = {name: value for name, value in given.items() if name not in sampling}
    _put_conversation_options(fields)
    fields["sampling"] = {name: value for name, value in given.items() if name in sampling}
    try:
        request = msgspec.convert(fields | {"model": model, "messages": messages, "prompt": prompt}, GenerationRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"an option cannot be used: {error}") from error
    seed = request.sampling.seed
    if seed is None:
        return request
    if not -SEEDS // 2 <= seed < SEEDS:
        raise InvalidRequest("a seed has at most 64 bits", param="seed")
    sampling_choices = msgspec.structs.replace(request.sampling, seed=seed % SEEDS)
    return msgspec.structs.replace(request, sampling=sampling_choices)


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            raise InvalidRequest(f"{name} is no option{nearest(name, sorted(OPTIONS))}", param=name)


def _put_conversation_options(fields: dict[str, Any]) -> None:
    """Tools and what the template is told are one field of the request, a format by its type another."""
    if isinstance(fields.get("tool_choice"), str):
        fields["tool_choice"] = {"mode": fields["tool_choice"]}
    chat: dict[str, Any] = {}
    for name, inside in (("tools", "tools"), ("template_arguments", "arguments")):
        if name in fields:
            chat[inside] = fields.pop(name)
    if fields.pop("continue_final_message", False):
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if chat:
        fields["chat"] = chat
