"""From what was asked to the message that a model's queue understands: every check that needs the model, and none that needs a seat.

A model of rows gets tokens, and limits that hold for its context. A delegate gets the request as it is, since it has a tokenizer and
limits of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import msgspec
import trio

from tripower.actors.constraining import new_constraint
from tripower.actors.delegate_preparation import PLAIN_PROMPT_TOKENS, delegate_question, unsupported_key
from tripower.actors.delegate_queue import OUTLET_ROOM, GenerateText
from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.drafting import narrowed, new_drafter
from tripower.actors.models import ReadyModel
from tripower.actors.queueing import Generate, outlet_room
from tripower.actors.request_checks import texts_of
from tripower.actors.template_variables import known_variables
from tripower.backends.sampling import check_sampling
from tripower.runtime.engine import (
    AnswerPlan,
    ChatMessage,
    Constraint,
    EngineInfo,
    LoadedDelegate,
    LoadedModel,
    PlainReader,
    SamplingParameters,
    TextLayer,
)
from tripower.runtime.engine.contract import ROW_ABILITIES
from tripower.runtime.engine.drafting import Drafter
from tripower.runtime.engine.encoder import LoadedEncoder
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.prefix_cache import namespace_of
from tripower.runtime.speculation import DraftModel, SpeculationSettings

INLINE_CHARACTERS = 4096
"""Longer text is rendered and tokenised in a worker thread, so that it does not hold up the loop."""
MESSAGE_CHARACTERS = 32
"""What a message costs to render beside its content, in characters of it."""
Work = TypeVar("Work")

UNKNOWN_VOCABULARY = 1 << 31
"""Ids that a delegate's tokens may have, where it does not tell how many there are."""


PLAIN_PLAN = AnswerPlan(new_reader=PlainReader)
"""Of an answer that is read as it is."""


@attrs.frozen(kw_only=True)
class Prepared:
    """A message, the room of the outlet that goes with it, and what is known beforehand of the answer."""

    message: Generate | GenerateText
    room: int
    seed: int
    """0 where the engine draws by itself."""
    prompt: tuple[int, ...] = ()
    """The prompt's tokens; empty where only the engine knows them."""
    plan: AnswerPlan = PLAIN_PLAN
    text: TextLayer | None = None
    """What spells tokens; None where only the engine can."""
    constraint: Constraint | None = None
    drafter: Drafter | None = None
    speculation: SpeculationSettings | None = None
    """What another drafter of the same request is made by."""
    draft: DraftModel | None = None
    """The draft model beside the engine."""
    info: EngineInfo | None = None
    vocabulary_size: int = 0
    """Of the engine; what another constraint of the same request is made for."""


async def prepare(ready: ReadyModel, request: GenerationRequest) -> Prepared:
    """Check and translate a request. Blocks for long texts and for formats only. Raises `InvalidRequest`.

    A model that must call nothing is not told of the tools: the prompt of `tool_choice: none` is the one without them.
    """
    if request.tool_choice.mode == "none" and request.chat.tools:
        request = msgspec.structs.replace(request, chat=msgspec.structs.replace(request.chat, tools=()))
    match ready.loaded:
        case LoadedModel():
            return await prepare_rows(ready.loaded, request, ready.speculation)
        case LoadedDelegate():
            return prepare_delegate(ready.loaded, request)
        case LoadedEncoder():
            raise InvalidRequest(
                f"{ready.name} makes embeddings and generates no text: send it to /v1/embeddings, or name another model",
                code="unsupported_by_model",
                param="model",
            )


async def prepare_choice(prepared: Prepared, request: GenerationRequest) -> Prepared:
    """The same for another choice of a request that is prepared: only its draws, and its constraint, are its own."""
    message = prepared.message
    if isinstance(message, GenerateText):
        return prepared
    sampling = msgspec.structs.replace(message.sampling, choice=request.choice)
    constraint = await new_constraint(prepared.plan.format, prepared.text, prepared.vocabulary_size, request.format_param)
    drafter = None
    if prepared.info is not None:
        settings = narrowed(prepared.speculation, request.draft_max)
        drafter = await new_drafter(settings, prepared.info, prepared.prompt, message.max_tokens, prepared.draft, sampling)
    return attrs.evolve(
        prepared, message=msgspec.structs.replace(message, sampling=sampling), constraint=constraint, drafter=drafter
    )


async def prepare_rows(
    loaded: LoadedModel, request: GenerationRequest, speculation: SpeculationSettings | None = None
) -> Prepared:
    """Tokens, sampling, limits, the constraint and the drafter for an engine of rows."""
    info, text = loaded.engine.info, loaded.text
    if request.chat.arguments:
        request = msgspec.structs.replace(request, chat=known_variables(request.chat, text.chat_template))
    prompt = tuple(await _tokens(request, info, text))
    sampling = choose_sampling(request.sampling, text.recommended)
    check_sampling(sampling, info.vocabulary_size)
    _check_tokens("stop_token_ids", request.stop_token_ids, info)
    if request.choice or request.min_tokens:
        sampling = _with_choice(sampling, request, text)
    max_tokens = choose_max_tokens(request, len(prompt), info.context_max)
    plan = plan_of(request, text)
    if plan.format is not None and request.min_tokens:
        raise InvalidRequest(
            "min_tokens: an answer with a format ends where the format is complete; leave one of them out", param="min_tokens"
        )
    if info.unsupported:
        refuse_unsupported(request, plan, info)
    namespace = prefix_namespace(request, info)
    return Prepared(
        message=Generate(
            prompt,
            max_tokens,
            sampling,
            request.stop,
            request.ignore_eos,
            request.stop_token_ids,
            NO_LOGPROBS if request.logprobs is None else request.logprobs,
            NO_LOGPROBS if request.prompt_logprobs is None else request.prompt_logprobs,
            plan.visible,
            request.progress,
            request.caller,
            request.priority,
            request.request_id,
            namespace,
        ),
        room=outlet_room(max_tokens),
        seed=sampling.seed,
        prompt=prompt,
        plan=plan,
        text=text,
        constraint=None
        if plan.format is None
        else await new_constraint(plan.format, text, info.vocabulary_size, request.format_param),
        drafter=await new_drafter(narrowed(speculation, request.draft_max), info, prompt, max_tokens, loaded.draft, sampling),
        speculation=speculation,
        draft=loaded.draft,
        info=info,
        vocabulary_size=info.vocabulary_size,
    )


def prefix_namespace(request: GenerationRequest, info: EngineInfo) -> str:
    """Whose states this request may reuse; empty for none. Raises `InvalidRequest` for a key that the engine cannot honour."""
    if not info.page_positions:
        if request.prompt_cache_key is not None:
            raise unsupported_key(info.backend)
        return ""
    if not request.cache_prompt:
        return ""
    endpoint = "completion" if request.messages is None else "chat"
    return namespace_of(identity=request.caller.identity, endpoint=endpoint, model=request.model, key=request.prompt_cache_key)


def plan_of(request: GenerationRequest, text: TextLayer) -> AnswerPlan:
    """How the answer is read. A plain prompt's is nothing but text. Raises `InvalidRequest`."""
    if request.messages is None:
        return PLAIN_PLAN if request.format is None else AnswerPlan(new_reader=PlainReader, format=request.format)
    return text.plan_answer(request.chat, request.tool_choice, request.format)


def refuse_unsupported(request: GenerationRequest, plan: AnswerPlan, info: EngineInfo) -> None:
    """Raise `InvalidRequest` (`unsupported_by_engine`) for what this engine of rows cannot do."""
    asked = {
        "format": plan.format is not None,
        "logprobs": request.logprobs is not None,
        "prompt_logprobs": request.prompt_logprobs is not None,
        "min_tokens": request.min_tokens > 0,
    }
    for ability in ROW_ABILITIES:
        if asked[ability] and ability in info.unsupported:
            param = (request.format_param if request.format is not None else "tools") if ability == "format" else ability
            raise InvalidRequest(
                f"the engine {info.backend} does not honour {param} here: leave it out, or ask a model on picolm",
                code="unsupported_by_engine",
                param=param,
            )


def _with_choice(sampling: SamplingParameters, request: GenerationRequest, text: TextLayer) -> SamplingParameters:
    """The draws of one choice, and the end tokens that are not drawn before there are `min_tokens`."""
    banned: frozenset[int] = frozenset()
    if request.min_tokens:
        banned = frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else text.end_tokens)
    return msgspec.structs.replace(
        sampling, choice=request.choice, banned=tuple(sorted(banned)), banned_until=request.min_tokens if banned else 0
    )


def _check_tokens(param: str, tokens: Sequence[int], info: EngineInfo) -> None:
    for token in tokens:
        if not 0 <= token < info.vocabulary_size:
            raise InvalidRequest(f"{param}: {token} is no token of a vocabulary of {info.vocabulary_size}", param=param)


def prepare_delegate(loaded: LoadedDelegate, request: GenerationRequest) -> Prepared:
    """The request for a delegate. Raises `InvalidRequest` for what it would not honour."""
    vocabulary_size = loaded.engine.info.vocabulary_size or UNKNOWN_VOCABULARY
    check_sampling(choose_sampling(request.sampling, SamplingParameters()), vocabulary_size)
    return Prepared(message=delegate_question(loaded, request), room=OUTLET_ROOM, seed=request.sampling.seed or 0)


async def _tokens(request: GenerationRequest, info: EngineInfo, text: TextLayer) -> list[int]:
    """Prompt to tokens."""
    _check_length(request, info, text)
    if request.messages is not None:
        messages, options = request.messages, request.chat
        size = size_of(messages)
        if not options.tools:
            return await _run(size, lambda: text.render_chat(messages, options))
        return await _run(INLINE_CHARACTERS + 1, lambda: text.render_chat(messages, options))
    if isinstance(request.prompt, str):
        prompt = request.prompt
        return await _run(len(prompt), lambda: text.tokenize(prompt))
    tokens = list(request.prompt or ())
    if len(tokens) > info.context_max:
        choose_max_tokens(request, len(tokens), info.context_max)  # refuses it, before each of very many is looked at
    await _run(len(tokens), lambda: _check_tokens("prompt", tokens, info))
    return tokens


def size_of(messages: Sequence[ChatMessage]) -> int:
    """How much there is to render, in characters: very many messages without content are work too."""
    return sum(len(message.content) + MESSAGE_CHARACTERS for message in messages)


def _check_length(request: GenerationRequest, info: EngineInfo, text: TextLayer) -> None:
    """Refuse text that no tokenizer could make short enough, before one spends seconds on it."""
    size = sum(len(each) for param, each in texts_of(request) if param != "stop")
    if size > info.context_max * text.piece_characters_max:
        raise InvalidRequest(
            f"this model's maximum context length is {info.context_max} tokens; {size} characters cannot fit",
            code="context_length_exceeded",
            param="prompt" if request.messages is None else "messages",
        )


async def _run(size: int, work: Callable[[], Work]) -> Work:
    if size <= INLINE_CHARACTERS:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # it only computes: who has left need not wait for it


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
            # The first words are OpenAI's: gateways and agents know by them that the conversation must be shortened.
            f"this model's maximum context length is {context} tokens; the prompt has {prompt_tokens}{more}. Shorten the prompt{cure}.",
            code="context_length_exceeded",
            param="messages" if request.messages is not None else "prompt",
        )
    return asked
