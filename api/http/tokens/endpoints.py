"""`/tokenize`, `/detokenize`, `/apply-template`, `/v1/chat/completions/input_tokens` and `/tokenizer_info`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qs

import attrs

from tripower.actors.models import ReadyModel
from tripower.actors.preparation import size_of
from tripower.actors.request_checks import check_options
from tripower.actors.template_variables import known_variables
from tripower.api.http.answers import encode
from tripower.api.http.bodies import decoded, read
from tripower.api.http.decoding import RequestDecoder
from tripower.api.http.dialects.decoding import DialectDecoder
from tripower.api.http.exchange import EXCHANGE, Exchange
from tripower.api.http.service import Service
from tripower.api.http.text.chat_options import HasChatOptions, options_of
from tripower.api.http.tokens import answers
from tripower.api.http.tokens.requests import ApplyTemplateIn, DetokenizeIn, TokenizeIn
from tripower.api.http.tokens.work import TextWork
from tripower.api.http.wire import ChatIn, conversation
from tripower.runtime.engine import ChatMessage, ChatOptions, EngineInfo, LoadedModel, TextLayer
from tripower.runtime.engine.contract import PLAIN_CHAT
from tripower.runtime.kernel import InvalidRequest

QUERY_FIELDS_MAX = 100
SIZE_MIN = 1 << 20
"""Characters, or tokens, that may be sent at once to any model."""


class AboutTokens(Protocol):
    """What every request here has."""

    @property
    def model(self) -> str | None: ...
    def check(self) -> None:
        """Raise `InvalidRequest` for what types cannot say."""


Asked = TypeVar("Asked", bound=AboutTokens)


@attrs.frozen
class Question:
    """What to ask a model's text layer: about how many characters or tokens, and in which field they came."""

    size: int
    param: str
    answer: Callable[[EngineInfo, TextLayer], tuple[object, int]]
    """The answer, and how many tokens were looked at for it: they are charged to whoever asks, like those of a prompt."""

    def encoded(self, info: EngineInfo, text: TextLayer) -> tuple[bytes, int]:
        """The same with the answer's JSON. Raises `InvalidRequest`."""
        answer, tokens = self.answer(info, text)
        return encode(answer), tokens

    def check(self, info: EngineInfo, text: TextLayer) -> None:
        """Whatever may be sent to a generation is answered, and a million characters of anything. Raises `InvalidRequest`.

        The longer a text, the longer are the stretches of work in which the interpreter serves nobody else.
        """
        size_max = max(SIZE_MIN, info.context_max * text.piece_characters_max)
        if self.size > size_max:
            raise InvalidRequest(
                f"{self.param}: {self.size} characters or tokens are more than the {size_max} that are worked on at once; send parts",
                code="text_too_long",
                param=self.param,
            )


class TokenEndpoint(Generic[Asked]):
    """An ASGI callable that decodes one kind of request, has the model's text layer answer it and sends the answer.

    `ask` translates the request, and raises `InvalidRequest`, before any model is loaded.
    """

    def __init__(
        self,
        service: Service,
        work: TextWork,
        decoder: RequestDecoder[Any] | DialectDecoder[Any],
        ask: Callable[[Asked], Question],
    ) -> None:
        self._service = service
        self._work = work
        self._decoder = decoder
        self._ask = ask

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        decode: Callable[..., tuple[Asked, tuple[str, ...]]] = self._decoder.decode
        body, (asked, exchange.ignored) = await decoded(exchange, self._service.server.max_body_bytes, decode)
        asked.check()
        question = await read(body, partial(self._ask, asked))
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        with exchange.interruptible(deadline):
            name = asked.model or await self._service.only_model()
            loaded = rows_of(await self._service.runtime.ready(name, deadline))
            info, text = loaded.engine.info, loaded.text
            question.check(info, text)
            answer, exchange.prompt_tokens = await self._work.done(question.size, partial(question.encoded, info, text))
        await exchange.answer(200, answer)


class TokenizerInfo:
    """What lm-eval's remote tokenizer asks first. `?model=` names the model where there are several."""

    def __init__(self, service: Service, work: TextWork) -> None:
        self._service = service
        self._work = work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange: Exchange = scope[EXCHANGE]
        named = _model_in(scope["query_string"])
        deadline = exchange.deadline(self._service.scheduler.deadline_max_s)
        with exchange.interruptible(deadline):
            name = named or await self._service.only_model()
            loaded = rows_of(await self._service.runtime.ready(name, deadline))
            answer = await self._work.done(0, lambda: encode(answers.tokenizer_info(name, loaded.engine.info, loaded.text)))
        await exchange.answer(200, answer)


def tokenize(asked: TokenizeIn) -> Question:
    messages = asked.conversation()
    options = checked_options(messages or (), asked)
    size = len(asked.text()) + _length(messages or (), options)
    return Question(size, asked.subject(), lambda info, text: answers.tokenize(asked, messages, options, info, text))


def detokenize(asked: DetokenizeIn) -> Question:
    def answer(info: EngineInfo, text: TextLayer) -> tuple[object, int]:
        return answers.detokenize(asked.tokens, info, text), len(asked.tokens)

    return Question(len(asked.tokens), "tokens", answer)


def apply_template(asked: ApplyTemplateIn) -> Question:
    messages = asked.conversation()
    options = checked_options(messages, asked)

    def answer(info: EngineInfo, text: TextLayer) -> tuple[object, int]:
        return answers.PromptOut(text.render_text(messages, known_variables(options, text.chat_template))), 0

    return Question(_length(messages, options), "messages", answer)


def count_input_tokens(asked: ChatIn) -> Question:
    messages = conversation(asked.messages)
    options = checked_options(messages, asked)

    def answer(info: EngineInfo, text: TextLayer) -> tuple[object, int]:
        tokens = len(text.render_chat(messages, known_variables(options, text.chat_template)))
        return answers.InputTokensOut(tokens), tokens

    return Question(_length(messages, options), "messages", answer)


def checked_options(messages: tuple[ChatMessage, ...], asked: HasChatOptions) -> ChatOptions:
    """What the template gets besides the messages. Raises `InvalidRequest`."""
    options = options_of(asked) or PLAIN_CHAT
    check_options(messages, options)
    return options


def rows_of(ready: ReadyModel) -> LoadedModel:
    """The model, if its tokenizer is here. Raises `InvalidRequest` (501) for a delegate, and for an encoder, which has rows of its own."""
    if isinstance(ready.loaded, LoadedModel):
        return ready.loaded
    raise InvalidRequest(
        f"the engine {ready.info.backend} keeps this model's tokenizer to itself: ask a model that generates on picolm or llamacpp",
        code="endpoint_not_supported", status=501, kind="not_supported_error", param="model",
    )  # fmt: skip


def _model_in(query: bytes) -> str:
    """The first `model` of a query; empty if there is none. Raises `InvalidRequest`."""
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=QUERY_FIELDS_MAX).get("model", [""])[0]
    except ValueError as error:
        raise InvalidRequest(f"model: the query has more than {QUERY_FIELDS_MAX} fields", param="model") from error


def _length(messages: tuple[ChatMessage, ...], options: ChatOptions = PLAIN_CHAT) -> int:
    """Characters of everything that the template writes out."""
    tools = len(encode(options.tools)) if options.tools else 0
    return tools + size_of(messages)
