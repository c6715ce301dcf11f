"""The four forms of a plain prompt: a text, a list of texts, a list of token ids, a list of lists of token ids."""

from __future__ import annotations

from typing import Any

from tripower.runtime.kernel import InvalidRequest

Prompt = str | tuple[int, ...]
CHOICES_MAX = 128
"""Answers to one request, over all its prompts: each takes a seat of its own."""


def prompts(given: str | list[Any]) -> tuple[Prompt, ...]:
    """Each prompt by itself, in order. Raises `InvalidRequest` naming the first that is none."""
    if isinstance(given, str):
        return (given,)
    if not given:
        raise InvalidRequest("prompt: the list is empty", param="prompt")
    if not any(isinstance(each, str | list) for each in given):
        return (_tokens("prompt", given),)
    if len(given) > CHOICES_MAX:
        raise InvalidRequest(
            f"prompt: at most {CHOICES_MAX} prompts a request; send the others in further ones", param="prompt"
        )
    if len(given) == 1:
        return (_prompt("prompt", given[0]),)
    return tuple(_prompt(f"prompt[{place}]", each) for place, each in enumerate(given))


def _prompt(param: str, given: Any) -> Prompt:
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return _tokens(param, given)
    raise InvalidRequest(f"{param}: expected text or a list of token ids, like the others", param=param)


def _tokens(param: str, given: list[Any]) -> tuple[int, ...]:
    if not given:
        raise InvalidRequest(f"{param}: the list is empty", param=param)
    for token in given:
        if type(token) is not int or not 0 <= token < 1 << 31:
            raise InvalidRequest(f"{param}: expected text, or a list of token ids", param=param)
    return tuple(given)
