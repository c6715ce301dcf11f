"""A model's vocabulary as llguidance knows it: the bytes of every token, which tokens are no text, and which end it.

A control token is given behind a mark that no text contains. So a grammar allows it only where it names it, as `<|im_start|>` or by
its id, and never inside a string. Ids that the engine has rows for and the vocabulary has no token for stand for nothing and are never
allowed.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llguidance import LLTokenizer, TokenizerWrapper

from tripower.runtime.engine.contract import TextLayer
from tripower.runtime.kernel.errors import InvalidRequest

if TYPE_CHECKING:
    from tripower.backends.grammar.formats import CompiledFormat

CONTROL_MARK = b"\xff"
"""Not a byte of UTF-8, so no text can be taken for a control token."""

_IN_STRINGS = r'[^"\\\x00-\x1F\x7F]'
SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_IN_STRINGS}{{1,{length}}}" for length in (3, 6, 10, 16, 30)), f"{_IN_STRINGS}+"]
"""Kinds of tokens that llguidance allows together, without a look at each, where all of a kind may come next: in JSON's strings those of
at most so many characters. In a string of bounded length fewer and fewer kinds may, so there are more of them than by default."""


class GrammarVocabulary:
    """Made once for a model; safe to use from any thread. `size` is that of the masks, in tokens."""

    def __init__(self, layer: TextLayer, size: int) -> None:
        """Blocks: 0.15 s for 49,000 tokens, 1.2 s for 262,000. Raises `InvalidRequest` (`unsupported_by_model`)."""
        ends = sorted(token for token in layer.end_tokens if 0 <= token < size)
        if not ends:
            raise InvalidRequest(
                "this model has no token that ends a text, so its answers cannot be held to a format",
                code="unsupported_by_model",
            )
        self.size = size
        self.ends = frozenset(ends)
        tokens = [_as_known(layer, token, token in self.ends) for token in range(size)]
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(tokens, ends[0])), eos_token=ends, slices=SLICES)
        self.compiled: OrderedDict[str, CompiledFormat] = OrderedDict()
        """What was compiled for it lately; see `formats.compile_format`."""
        self.lock = threading.Lock()
        """Guards `compiled`."""


_known: weakref.WeakKeyDictionary[TextLayer, GrammarVocabulary] = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def grammar_vocabulary(layer: TextLayer, size: int) -> GrammarVocabulary:
    """The vocabulary of this text layer for an engine of `EngineInfo.vocabulary_size` tokens, made by whoever asks first.

    Blocks while it is made, for a second at most: not for the event loop. It lives as long as the layer, which it does not keep alive.
    """
    with _known_lock:
        vocabulary = _known.get(layer)
        if vocabulary is None or vocabulary.size != size:
            vocabulary = _known[layer] = GrammarVocabulary(layer, size)
        return vocabulary


def _as_known(layer: TextLayer, token: int, ends: bool) -> bytes:
    piece = layer.piece(token)
    if piece and not ends:
        return b"" if CONTROL_MARK in piece else piece
    spelling = layer.spelling(token)
    return CONTROL_MARK + spelling if spelling else b""


class _Tokens:
    """What `TokenizerWrapper` asks of a tokenizer. No grammar here asks it to tokenise: see `lark.FREE`."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end

    def __call__(self, text: bytes) -> list[int]:
        """None: llguidance then takes the longest tokens that fit."""
        return []
