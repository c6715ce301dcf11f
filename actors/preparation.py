"""From what was asked to the message that a model's queue understands: every check that needs the model, and none that needs a seat.

A model of rows gets tokens, and limits that hold for its context. A delegate gets the request as it is, since it has a tokenizer and
limits of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import attrs
import msgspec
import trio

from tripower.actors.delegate_queue import OUTLET_ROOM, GenerateText
from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.models import ReadyModel
from tripower.actors.queueing import Generate, outlet_room
from tripower.backends.sampling import check_sampling
from tripower.runtime.engine import (
    ChatMessage,
    DelegateRequest,
    EngineInfo,
    LoadedDelegate,
    LoadedModel,
    SamplingParameters,
    TextLayer,
)
from tripower.runtime.engine.encoder import LoadedEncoder
from tripower.runtime.kernel import InvalidRequest

PLAIN_PROMPT_TOKENS = 16
"""What OpenAI's completions generate when nothing is said."""
INLINE_CHARACTERS = 16_384
"""Longer text is rendered and tokenised in a worker thread, so that it does not hold up the loop."""
UNKNOWN_VOCABULARY = 1 << 31
"""Ids that a delegate's tokens may have, where it does not tell how many there are."""


@attrs.frozen
class Prepared:
    """A message, the room of the outlet that goes with it, and what is known beforehand of the answer."""

    message: Generate | GenerateText
    room: int
    prompt_tokens: int
    """0 where only the engine can count them."""
    seed: int
    """0 where the engine draws by itself."""


async def prepare(ready: ReadyModel, request: GenerationRequest) -> Prepared:
    """Check and translate a request. Blocks for long texts only. Raises `InvalidRequest`."""
    match ready.loaded:
        case LoadedModel():
            return await prepare_rows(ready.loaded, request)
        case LoadedDelegate():
            return prepare_delegate(ready.loaded, request)
        case LoadedEncoder():
            raise InvalidRequest(
                f"{ready.name} makes embeddings and generates no text: send it to /v1/embeddings, or name another model",
                code="unsupported_by_model",
                param="model",
            )


async def prepare_rows(loaded: LoadedModel, request: GenerationRequest) -> Prepared:
    """Tokens, sampling and limits for an engine of rows."""
    info, text = loaded.engine.info, loaded.text
    prompt = await _tokens(request, info, text)
    sampling = choose_sampling(request.sampling, text.recommended)
    check_sampling(sampling, info.vocabulary_size)
    max_tokens = choose_max_tokens(request, len(prompt), info.context_max)
    message = Generate(tuple(prompt), max_tokens, sampling, request.stop, request.ignore_eos)
    return Prepared(message, outlet_room(max_tokens), len(prompt), sampling.seed)


def prepare_delegate(loaded: LoadedDelegate, request: GenerationRequest) -> Prepared:
    """The request for a delegate, if it can honour all of it."""
    info = loaded.engine.info
    check_sampling(choose_sampling(request.sampling, SamplingParameters()), info.vocabulary_size or UNKNOWN_VOCABULARY)
    if not request.messages and not request.prompt:
        raise InvalidRequest("the prompt is empty", param="prompt" if request.messages is None else "messages")
    max_tokens = request.max_tokens
    if max_tokens is None and request.messages is None:
        max_tokens = PLAIN_PROMPT_TOKENS
    asking = DelegateRequest(
        messages=_without_developers(request.messages),
        prompt=request.prompt,
        max_tokens=max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        sampling=request.sampling,
    )
    loaded.engine.abilities.check(asking, info.backend)
    return Prepared(GenerateText(asking), OUTLET_ROOM, 0, request.sampling.seed or 0)


def _without_developers(messages: tuple[ChatMessage, ...] | None) -> tuple[ChatMessage, ...] | None:
    """What a developer says is said by the system: nobody knows what another engine's template makes of the newer word."""
    if messages is None:
        return None
    return tuple(
        msgspec.structs.replace(message, role="system") if message.role == "developer" else message for message in messages
    )


async def _tokens(request: GenerationRequest, info: EngineInfo, text: TextLayer) -> list[int]:
    """Prompt to tokens."""
    _check_length(request, info, text)
    if request.messages is not None:
        messages = request.messages
        size = sum(len(message.content) for message in messages)
        return await _run(size, lambda: text.render_chat(messages))
    if isinstance(request.prompt, str):
        prompt = request.prompt
        return await _run(len(prompt), lambda: text.tokenize(prompt))
    tokens = list(request.prompt or ())
    for token in tokens:
        if not 0 <= token < info.vocabulary_size:
            raise InvalidRequest(f"{token} is no token of a vocabulary of {info.vocabulary_size}", param="prompt")
    return tokens


def _check_length(request: GenerationRequest, info: EngineInfo, text: TextLayer) -> None:
    """Refuse text that no tokenizer could make short enough, before one spends seconds on it."""
    size = sum(len(each) for param, each in _texts(request) if param != "stop")
    if size > info.context_max * text.piece_characters_max:
        raise InvalidRequest(
            f"{size} characters do not fit a context of {info.context_max} tokens",
            code="context_length_exceeded",
            param="prompt" if request.messages is None else "messages",
        )


async def _run(size: int, work: Callable[[], list[int]]) -> list[int]:
    if size <= INLINE_CHARACTERS:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # it only computes: who has left need not wait for it


def check_request(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` for what is wrong whatever the model, before one is loaded."""
    if (request.messages is None) == (request.prompt is None):
        raise InvalidRequest("give either messages or a prompt", param="messages")
    if request.max_tokens is not None and request.max_tokens < 0:
        raise InvalidRequest("max_tokens must not be negative", param="max_tokens")
    if "" in request.stop:
        raise InvalidRequest("a stop string is empty", param="stop")
    for param, text in _texts(request):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{param}: half a character is no text", code="invalid_unicode", param=param) from None


def _texts(request: GenerationRequest) -> Iterator[tuple[str, str]]:
    for message in request.messages or ():
        yield "messages", message.content
        yield "messages", message.name or ""
    if isinstance(request.prompt, str):
        yield "prompt", request.prompt
    for stop in request.stop:
        yield "stop", stop


def choose_sampling(choices: SamplingChoices, recommended: SamplingParameters) -> SamplingParameters:
    """What was asked for, else what the model file recommends; a seed of its own for whoever named none."""
    asked = {name: value for name, value in msgspec.structs.asdict(choices).items() if value is not None}
    asked.setdefault("seed", secrets.randbits(63))
    return msgspec.structs.replace(recommended, **asked)


def choose_max_tokens(request: GenerationRequest, prompt_tokens: int, context: int) -> int:
    """How many tokens may be generated. Raises `InvalidRequest` (`context_length_exceeded`) when prompt and answer do not fit."""
    if prompt_tokens == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    room = context - prompt_tokens + 1  # the last token drawn is not evaluated
    asked = request.max_tokens
    if asked is None:
        asked = room if request.messages is not None else min(room, PLAIN_PROMPT_TOKENS)
    if prompt_tokens > context or asked > room:
        wanted = request.max_tokens
        more, cure = (f" and {wanted} more were asked for", " or lower max_tokens") if wanted else ("", "")
        raise InvalidRequest(
            f"this model's context is {context} tokens; the prompt has {prompt_tokens}{more}. Shorten the prompt{cure}.",
            code="context_length_exceeded",
            param="messages" if request.messages is not None else "prompt",
        )
    return asked
