"""Answers about tokens, and how they come out of a text layer. Synchronous and pure: long texts are given to a worker thread."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tripower.actors.template_variables import known_variables
from tripower.api.http.tokens.requests import TokenizeIn
from tripower.runtime.engine import ChatMessage, ChatOptions, EngineInfo, TextLayer
from tripower.runtime.kernel import InvalidRequest

SPELLED_MAX = 1 << 18
"""A token that is spelled out takes some hundred bytes on its way."""


class PieceOut(msgspec.Struct, frozen=True):
    """A token and what it stands for: text, or its bytes where they are no whole characters."""

    id: int
    piece: str | tuple[int, ...]


class LlamaTokensOut(msgspec.Struct, frozen=True):
    """llama-server's answer: ids, or with `with_pieces` ids and pieces."""

    tokens: tuple[int | PieceOut, ...]


class VllmTokensOut(msgspec.Struct, frozen=True):
    """vLLM's answer. `token_strs` is null unless it was asked for."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class DetokenizedOut(msgspec.Struct, frozen=True):
    """The text, under both servers' names."""

    content: str
    prompt: str


class PromptOut(msgspec.Struct, frozen=True):
    """The text that a conversation becomes."""

    prompt: str


class InputTokensOut(msgspec.Struct, frozen=True):
    """How many tokens a request would begin with."""

    input_tokens: int
    object: str = "response.input_tokens"


class TokenizerInfoOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to use this tokenizer without having it."""

    tokenizer_class: str = "tripower"
    model: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    """Every token that ends an answer."""


def tokenize(
    asked: TokenizeIn, messages: Sequence[ChatMessage] | None, options: ChatOptions, info: EngineInfo, text: TextLayer
) -> tuple[LlamaTokensOut | VllmTokensOut, int]:
    """The answer and its number of tokens. Raises `InvalidRequest` for what the tokenizer or the template cannot take."""
    if messages is not None:
        ids = text.render_chat(messages, known_variables(options, text.chat_template))
    else:
        ids = text.tokenize(asked.text(), add_special=asked.adds_special(), parse_special=asked.parses_special())
    spells = "with_pieces" if asked.with_pieces else "return_token_strs" if asked.return_token_strs else ""
    if spells and len(ids) > SPELLED_MAX:
        raise InvalidRequest(f"{spells}: of at most {SPELLED_MAX} tokens; the text has {len(ids)}, so send parts", param=spells)
    if asked.content is not None:
        return LlamaTokensOut(tuple(_piece(token, text) for token in ids) if asked.with_pieces else tuple(ids)), len(ids)
    spelled = tuple(text.spelling(token).decode(errors="replace") for token in ids) if asked.return_token_strs else None
    return VllmTokensOut(len(ids), info.context_max, tuple(ids), spelled), len(ids)


def detokenize(tokens: Sequence[int], info: EngineInfo, text: TextLayer) -> DetokenizedOut:
    """Raises `InvalidRequest` for an id outside the vocabulary. Bytes that are no characters become U+FFFD."""
    for index, token in enumerate(tokens):
        if token >= info.vocabulary_size:
            raise InvalidRequest(
                f"tokens[{index}]: {token} is no token of a vocabulary of {info.vocabulary_size}", param=f"tokens[{index}]"
            )
    spelled = b"".join(map(text.spelling, tokens)).decode(errors="replace")
    return DetokenizedOut(content=spelled, prompt=spelled)


def tokenizer_info(model: str, info: EngineInfo, text: TextLayer) -> TokenizerInfoOut:
    """Names that do not exist are null, never empty."""
    named = text.special_texts
    return TokenizerInfoOut(
        model=model,
        vocab_size=info.vocabulary_size,
        model_max_length=info.context_max,
        bos_token=named.get("bos_token") or None,
        eos_token=named.get("eos_token") or None,
        unk_token=named.get("unk_token") or None,
        pad_token=named.get("pad_token") or None,
        chat_template=text.chat_template or None,
        eos_token_ids=tuple(sorted(text.end_tokens)),
    )


def _piece(token: int, text: TextLayer) -> PieceOut:
    spelled = text.spelling(token)
    try:
        return PieceOut(token, spelled.decode())
    except UnicodeDecodeError:
        return PieceOut(token, tuple(spelled))
