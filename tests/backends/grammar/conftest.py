"""Random walks over masks: documents as a model without any sense would write them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tripower.backends.gguf.reader import open_gguf
from tripower.backends.grammar import CompiledFormat, GrammarVocabulary, compile_format, grammar_vocabulary
from tripower.backends.text.layer import GgufTextLayer
from tripower.backends.toy.text import ToyText
from tripower.runtime.engine.constraint import Constraint, JsonSchemaFormat, OutputFormat, TokenMask
from tripower.runtime.engine.contract import TextLayer

TOY_SIZE = 300
"""The toy's 257 tokens, and ids without a token behind them, as engines have that pad their vocabulary."""
STEPS_MAX = 1000
CLOSERS = '"@}],:10e'
"""What brings a JSON text to its end, the surest first."""


@pytest.fixture(scope="session")
def toy_text() -> ToyText:
    return ToyText()


@pytest.fixture(scope="session")
def toy(toy_text: ToyText) -> GrammarVocabulary:
    return grammar_vocabulary(toy_text, TOY_SIZE)


@pytest.fixture(scope="session")
def smollm2_text(smollm2_path: Path) -> GgufTextLayer:
    with open_gguf(smollm2_path) as file:
        return GgufTextLayer(file)


@pytest.fixture(scope="session")
def smollm2(smollm2_text: GgufTextLayer) -> GrammarVocabulary:
    return grammar_vocabulary(smollm2_text, len(smollm2_text.tokenizer.vocabulary))


def allowed(mask: TokenMask) -> list[int]:
    """The tokens of a mask."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def compiled(format: OutputFormat | dict[str, Any] | bool, vocabulary: GrammarVocabulary) -> CompiledFormat:
    if isinstance(format, dict | bool):
        format = JsonSchemaFormat(format)
    return compile_format(format, vocabulary, param="the.field")


def feed(constraint: Constraint, tokens: list[int]) -> bool:
    """Whether the constraint allows all of them, one after the other."""
    for token in tokens:
        if token not in allowed(constraint.mask()):
            return False
        constraint.accept(token)
    return True


def accepts(format: OutputFormat | dict[str, Any] | bool, text: str, vocabulary: GrammarVocabulary) -> bool:
    """Whether this is a whole text of the format. For the toy, whose tokens are bytes."""
    constraint = compiled(format, vocabulary).new_constraint()
    return feed(constraint, list(text.encode())) and bool(vocabulary.ends & set(allowed(constraint.mask())))


def walk(constraint: Constraint, layer: TextLayer, seed: int, *, wild: int = 60) -> bytes:
    """A whole text: `wild` tokens drawn from everything that is allowed, then the quickest way to the end."""
    draws = random.Random(seed)
    closers = [layer.tokenize(closer, add_special=False)[0] for closer in CLOSERS]
    text = b""
    for step in range(STEPS_MAX):
        mask = constraint.mask()
        plain = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        ends = [token for token in layer.end_tokens if _has(mask, token)]
        assert len(plain), f"nothing may follow {text!r}"
        if ends and (step >= wild or len(ends) == len(plain) or draws.random() < 0.1):
            return text
        token = next((each for each in closers if _has(mask, each)), None) if step >= wild and draws.random() < 0.8 else None
        while token is None or token in layer.end_tokens:
            token = int(draws.choice(plain))
        assert layer.piece(token), f"a control token may follow {text!r}"
        text += layer.piece(token)
        constraint.accept(token)
    raise AssertionError(f"no end after {STEPS_MAX} tokens: {text[-200:]!r}")


def _has(mask: TokenMask, token: int) -> bool:
    return bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))
