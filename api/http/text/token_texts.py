"""Tokens as OpenAI writes them beside their log probabilities: as text where they are whole characters, else as their bytes.

A token that holds part of a character has no text of its own. It is written as its bytes in hexadecimal, `\\xf0\\x9f` in a conversation
and `bytes:\\xf0\\x9f` in a completion, and where a field `bytes` exists, that holds them as they are: together they are the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tripower.runtime.engine import TextLayer, TokenLogprobs

LOGPROB_MIN = -9999.0
"""In place of anything lower: JSON has no infinity."""
_new_decoder = codecs.getincrementaldecoder("utf-8")


class TopLogprobOut(msgspec.Struct, frozen=True):
    """A likely token at one position."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenLogprobOut(msgspec.Struct, frozen=True):
    """The token at one position of a chat answer."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[TopLogprobOut, ...]


class ChatLogprobsOut(msgspec.Struct, frozen=True):
    """Of a chat answer."""

    content: tuple[TokenLogprobOut, ...]
    refusal: None = None


class CompletionLogprobsOut(msgspec.Struct, frozen=True):
    """Of a completion: four lists of one length. The first token of a repeated prompt has no probability, so null."""

    text_offset: tuple[int, ...]
    """Where in the text of the choice each token begins, in characters."""
    token_logprobs: tuple[float | None, ...]
    tokens: tuple[str, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]


class PromptLogprobOut(msgspec.Struct, frozen=True):
    """vLLM's words for a token of the prompt. `rank` is null for a token that is not among the likeliest that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


def chat_logprobs(tokens: Iterable[TokenLogprobs], text: TextLayer, top: int) -> ChatLogprobsOut:
    """Of generated tokens, with at most `top` alternatives each."""
    return ChatLogprobsOut(tuple(_chat_token(each, text, top) for each in tokens))


def _chat_token(each: TokenLogprobs, text: TextLayer, top: int) -> TokenLogprobOut:
    spelled = spelling(each.token, text)
    alternatives = []
    for token, logprob in each.top[:top]:
        other = spelling(token, text)
        alternatives.append(TopLogprobOut(written(other), _finite(logprob), tuple(other)))
    return TokenLogprobOut(written(spelled), _finite(each.logprob), tuple(spelled), tuple(alternatives))


class CompletionLogprobs:
    """Lists for one completion, as its tokens come; offsets go on from one call to the next."""

    def __init__(self, text: TextLayer, top: int) -> None:
        self._text = text
        self._top = top
        self._decoder = _new_decoder("replace")
        self._offset = 0

    def prompt(self, prompt: Sequence[int], scored: Sequence[TokenLogprobs]) -> CompletionLogprobsOut:
        """Of a repeated prompt. `scored` begins with its second token."""
        return self._lists(prompt[:1], [None, *scored][: len(prompt)])

    def tokens(self, tokens: Sequence[TokenLogprobs]) -> CompletionLogprobsOut:
        """Of generated tokens."""
        return self._lists((), tokens)

    def _lists(self, first: Sequence[int], tokens: Sequence[TokenLogprobs | None]) -> CompletionLogprobsOut:
        offsets, logprobs, names, tops = [], [], [], []
        for each in tokens:
            token = first[0] if each is None else each.token
            offsets.append(self._advance(self._text.piece(token)))
            names.append(written(spelling(token, self._text), prefix="bytes:"))
            logprobs.append(None if each is None else _finite(each.logprob))
            tops.append(None if each is None else self._likeliest(each, names[-1]))
        return CompletionLogprobsOut(tuple(offsets), tuple(logprobs), tuple(names), tuple(tops))

    def _advance(self, piece: bytes) -> int:
        """Where the text of these bytes begins: with a character that they complete, behind one that they leave broken."""
        begun: bytes = self._decoder.getstate()[0]
        replaced = bool(begun and piece and not _goes_on(begun + piece[:1]))
        begin = self._offset + replaced  # the text holds one U+FFFD for the bytes that came to nothing
        self._offset += len(self._decoder.decode(piece))
        return begin

    def _likeliest(self, each: TokenLogprobs, name: str) -> dict[str, float]:
        """By text, the likelier of two that look alike; the token that stands there is always among them."""
        found: dict[str, float] = {}
        for token, logprob in each.top[: self._top]:
            found.setdefault(written(spelling(token, self._text), prefix="bytes:"), _finite(logprob))
        found.setdefault(name, _finite(each.logprob))
        return found


def prompt_logprobs(
    prompt: Sequence[int], scored: Sequence[TokenLogprobs], text: TextLayer, top: int
) -> tuple[Mapping[str, PromptLogprobOut] | None, ...]:
    """vLLM's `prompt_logprobs`: for each token of the prompt a table by token id, null for the first."""
    return (None, *[_prompt_token(each, text, top) for each in scored])[: len(prompt)]


def _prompt_token(each: TokenLogprobs, text: TextLayer, top: int) -> Mapping[str, PromptLogprobOut]:
    ranks = {token: rank for rank, (token, _) in enumerate(each.top, start=1)}
    shown = dict(each.top[:top]) | {each.token: each.logprob}
    return {
        str(token): PromptLogprobOut(_finite(logprob), ranks.get(token), written(spelling(token, text)))
        for token, logprob in shown.items()
    }


def prompt_text(prompt: str | Sequence[int], text: TextLayer | None) -> str:
    """A prompt as it is repeated: as it was sent, or what its tokens stand for."""
    if isinstance(prompt, str):
        return prompt
    assert text is not None, "tokens are taken where there is a text layer"
    return b"".join(map(text.piece, prompt)).decode(errors="replace")


def spelling(token: int, text: TextLayer) -> bytes:
    """The bytes of a token; for a control token the text by which it is known."""
    return text.piece(token) or text.spelling(token)


def written(spelled: bytes, *, prefix: str = "") -> str:
    """A token's bytes as text, if they are whole characters."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in spelled)


def _goes_on(begun: bytes) -> bool:
    """Whether these bytes are a character of UTF-8, or begin one."""
    try:
        _new_decoder().decode(begun)
    except UnicodeDecodeError:
        return False
    return True


def _finite(logprob: Any) -> float:
    """Never an infinity, and never what is no number."""
    return float(logprob) if logprob > LOGPROB_MIN else LOGPROB_MIN
