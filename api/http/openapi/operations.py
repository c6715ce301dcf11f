"""What each route takes and gives, by the route's name. A test requires every route to be here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tripower.actors.runtime import Health
from tripower.api.http import wire
from tripower.api.http.answers import Answer, ChatChoice, CompletionChoice
from tripower.api.http.embeddings.answer import EmbeddingsOut
from tripower.api.http.embeddings.request import EmbeddingsIn
from tripower.api.http.errors import ErrorBody
from tripower.api.http.messages.answer import MessageOut, TokenCountOut
from tripower.api.http.messages.errors import MessagesError
from tripower.api.http.messages.requests import CountTokensIn, MessagesIn
from tripower.api.http.requests.endpoints import CancelledOut, RequestListOut
from tripower.api.http.responses.answer import ResponseOut
from tripower.api.http.responses.requests import ResponseIn
from tripower.api.http.router.endpoints import DoneOut, ModelIn
from tripower.api.http.slots.endpoint import SlotOut
from tripower.api.http.status_endpoints import ModelListOut, ModelOut, ReadyOut
from tripower.api.http.tokens import answers
from tripower.api.http.tokens.requests import ApplyTemplateIn, DetokenizeIn, TokenizeIn
from tripower.api.http.ui.endpoints import StateOut


class ChatAnswer(Answer, frozen=True, kw_only=True):
    """A whole answer of `/v1/chat/completions`."""

    choices: tuple[ChatChoice, ...]


class CompletionAnswer(Answer, frozen=True, kw_only=True):
    """A whole answer of `/v1/completions`."""

    choices: tuple[CompletionChoice, ...]


@attrs.frozen(kw_only=True)
class Operation:
    """One route for people and generators of clients. `answer` is a type that JSON is made of, or None for plain text."""

    summary: str
    tag: str
    request: Any = None
    answer: Any = None
    also: tuple[str, ...] = ()
    """Other media types that the answer may have."""
    unavailable: bool = False
    """Whether 503 comes with the same body."""
    error: Any = ErrorBody
    query: Mapping[str, str] = attrs.Factory(dict)
    """Parameters behind the question mark, all of them optional texts."""

    @property
    def waits(self) -> bool:
        """Whether its requests wait for a seat, so that one can go before another."""
        return EVENTS in self.also


EVENTS = "text/event-stream"
PLAIN = "text/plain"

OPERATIONS: Mapping[str, Operation] = {
    "chat": Operation(
        summary="Answer a conversation, whole or as server-sent events",
        tag="text",
        request=wire.ChatIn,
        answer=ChatAnswer,
        also=(EVENTS,),
    ),
    "completions": Operation(
        summary="Continue a plain prompt, whole or as server-sent events",
        tag="text",
        request=wire.CompletionIn,
        answer=CompletionAnswer,
        also=(EVENTS,),
    ),
    "embeddings": Operation(
        summary="Vectors for texts or rows of token ids", tag="text", request=EmbeddingsIn, answer=EmbeddingsOut
    ),
    "models": Operation(summary="What can be asked for", tag="models", answer=ModelListOut),
    "model": Operation(summary="One model; its id may contain slashes", tag="models", answer=ModelOut),
    "router_models": Operation(summary="The same as /v1/models", tag="models", answer=ModelListOut),
    "load_model": Operation(
        summary="Load a model, and answer when it can be used", tag="models", request=ModelIn, answer=DoneOut
    ),
    "unload_model": Operation(
        summary="Unload a model when its requests have ended, and answer when its memory is free",
        tag="models",
        request=ModelIn,
        answer=DoneOut,
    ),
    "requests": Operation(summary="What the caller has asked and is not answered yet", tag="operation", answer=RequestListOut),
    "delete_request": Operation(
        summary="End a request by its x-request-id, and answer when it has ended", tag="operation", answer=CancelledOut
    ),
    "cancel_request": Operation(summary="The same as DELETE", tag="operation", answer=CancelledOut),
    "tokenize": Operation(
        summary="Tokens of a text or a conversation, in the dialect of llama-server or of vLLM",
        tag="tokens",
        request=TokenizeIn,
        answer=answers.LlamaTokensOut | answers.VllmTokensOut,
    ),
    "detokenize": Operation(
        summary="The text that tokens stand for", tag="tokens", request=DetokenizeIn, answer=answers.DetokenizedOut
    ),
    "tokenizer_info": Operation(
        summary="Names of special tokens, the chat template, the size of the vocabulary",
        tag="tokens",
        answer=answers.TokenizerInfoOut,
        query={"model": "which model; may be left out where one is served"},
    ),
    "apply_template": Operation(
        summary="The text that a conversation becomes", tag="tokens", request=ApplyTemplateIn, answer=answers.PromptOut
    ),
    "chat_input_tokens": Operation(
        summary="How many tokens a conversation has, by the request that would be answered",
        tag="tokens",
        request=wire.ChatIn,
        answer=answers.InputTokensOut,
    ),
    "responses": Operation(
        summary="Answer a conversation in OpenAI's newer dialect, whole or as server-sent events",
        tag="text",
        request=ResponseIn,
        answer=ResponseOut,
        also=(EVENTS,),
    ),
    "responses_input_tokens": Operation(
        summary="How many tokens a conversation in OpenAI's newer dialect has",
        tag="tokens",
        request=ResponseIn,
        answer=answers.InputTokensOut,
    ),
    "messages": Operation(
        summary="Answer a conversation in Anthropic's dialect, whole or as server-sent events",
        tag="text",
        request=MessagesIn,
        answer=MessageOut,
        also=(EVENTS,),
        error=MessagesError,
    ),
    "count_tokens": Operation(
        summary="How many tokens a conversation in Anthropic's dialect has",
        tag="tokens",
        request=CountTokensIn,
        answer=TokenCountOut,
        error=MessagesError,
    ),
    "slots": Operation(
        summary="The seats of every loaded model, in the words of llama-server",
        tag="operation",
        answer=list[SlotOut],
        query={"model": "only this model's", "fail_on_no_slot": "1 answers 503 where no seat is free"},
    ),
    "health": Operation(summary="Whether anything is wrong", tag="operation", answer=Health, unavailable=True),
    "ready": Operation(summary="Whether new work is welcome", tag="operation", answer=ReadyOut, unavailable=True),
    "metrics": Operation(summary="Prometheus's text format", tag="operation", also=(PLAIN,)),
    "ui": Operation(summary="The web page", tag="page", also=("text/html",)),
    "ui_style": Operation(summary="Its style sheet", tag="page", also=("text/css",)),
    "ui_script": Operation(summary="Its script", tag="page", also=("text/javascript",)),
    "ui_state": Operation(
        summary="What the page shows of the server: for administrators, where a key is one's", tag="page", answer=StateOut
    ),
    "openapi": Operation(summary="This document", tag="operation", answer=dict[str, Any]),
}
