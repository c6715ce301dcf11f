"""How byte-level BPE vocabularies cut text into words before merging, by the name in `tokenizer.ggml.pre`.

A name is here only if its ids were compared with llama.cpp's over a vocabulary that joins every pair of bytes, so that a cut at a
wrong place shows (`tests/backends/test_pretokenizers.py`). Any other name is refused: a near miss would degrade every answer
without a word. Each pattern cuts the pieces that the one before it left; `\\s+` closes each, where the originals leave it implied.
"""

from __future__ import annotations

import msgspec

from tripower.runtime.kernel.errors import ModelRefused


class PreTokenizer(msgspec.Struct, frozen=True):
    """`ignore_merges`: a word that is a token is taken whole. `add_bos`: what the family does unless the file says otherwise."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])*(?:(?=\p{L})[^A-Z])+|[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])+(?:(?=\p{L})[^A-Z])*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
) + _SPACES

_PLAIN = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_QWEN = PreTokenizer((_QWEN2,))
_LLAMA = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_GLM = PreTokenizer((_LLAMA3,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "falcon3": _LLAMA,
    "pixtral": _LLAMA,
    "dbrx": _GLM,
    "smaug-bpe": _GLM,
    "glm4": _GLM,
    "chatglm-bpe": _GLM,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "stablelm2": _QWEN,
    "megrez": _QWEN,
    "qwen35": PreTokenizer((_QWEN35,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Raises `ModelRefused` (`unsupported_tokenizer`) for a name that is not in the table."""
    if name not in PRE_TOKENIZERS:
        raise ModelRefused(
            f"tokenizer.ggml.pre names the pre-tokeniser {name[:80]!r}, which is not supported",
            code="unsupported_tokenizer",
            param="tokenizer.ggml.pre",
        )
    return PRE_TOKENIZERS[name]
