"""How llama.cpp's server guesses tokens without a draft model: its kinds of n-gram speculation, as words of a command line.

A kind is written as `ngram-simple`, or with settings of its own as `ngram-simple:size_n=4,size_m=12`. `none` guesses nothing.

| kind | guesses | settings and their defaults |
| --- | --- | --- |
| `ngram-simple` | what followed the last `size_n` tokens where they were last seen in prompt and answer, `size_m` tokens of it | `size_n` 12, `size_m` 48, `min_hits` 1 |
| `ngram-map-k` | the same by a map of keys, with how often each was right | as above |
| `ngram-map-k4v` | the same with up to four values for each key | as above |
| `ngram-mod` | token by token out of a table of hashes of the last `n_match` tokens, shared by all requests since the server began | `n_match` 24, `n_min` 48, `n_max` 64 |
| `ngram-cache` | by counts of what followed n-grams of 1 to 4 tokens | none |
"""

from __future__ import annotations

from typing import Any

KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
NONE = "none"
TRIED = (
    NONE,
    "ngram-simple",
    "ngram-simple:size_n=4,size_m=12",
    "ngram-map-k",
    "ngram-map-k:size_n=4,size_m=12",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-mod:n_match=8,n_min=4,n_max=16",
    "ngram-cache",
)
"""What a comparison tries, to take the best of it: each kind at its defaults, and those with lengths at lengths nearer to what pays on a CPU."""


def parse_guessing(word: str) -> tuple[str, dict[str, int]]:
    """A kind and its settings. Raises `ValueError` for what is not of that form."""
    kind, _, rest = word.partition(":")
    if kind not in (NONE, *KINDS):
        raise ValueError(f"{kind!r} is none of {', '.join((NONE, *KINDS))}")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    return kind, {name: int(value) for name, _, value in pairs}


def set_guessing(parameters: Any, word: str) -> None:
    """Put it into `xllamacpp.CommonParams`. Raises `ValueError` as `parse_guessing`, `AttributeError` for a setting that the kind lacks."""
    import xllamacpp

    kind, settings = parse_guessing(word)
    if kind == NONE:
        return
    name = kind.replace("-", "_")
    kinds = xllamacpp.common_speculative_type
    parameters.speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.upper()}")]
    for setting, value in settings.items():
        setattr(getattr(parameters.speculative, name), setting, value)
