"""How much a model should think before it answers, where its chat template lets that be said.

Templates have no common word for it: the ones of Qwen3 and its relatives have a switch, `enable_thinking`, the ones of gpt-oss a
degree, `reasoning_effort`. A model whose template has neither thinks as it was trained to.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from tripower.actors.models import ReadyModel
from tripower.runtime.engine import LoadedModel

OFF = "none"
_SWITCH = re.compile(r"\benable_thinking\b")
_DEGREE = re.compile(r"\breasoning_effort\b")


@attrs.frozen
class ThinkingWish:
    """What was asked for, and in which field. `effort` is None where only thinking as such was asked for."""

    field: str
    thinks: bool
    effort: str | None = None


def template_arguments(template: str, wish: ThinkingWish) -> dict[str, Any] | None:
    """Variables of the template that fulfil the wish; None where it has no words for it."""
    arguments: dict[str, Any] = {}
    if _SWITCH.search(template):
        arguments["enable_thinking"] = wish.thinks
    if _DEGREE.search(template) and wish.effort is not None:
        arguments["reasoning_effort"] = wish.effort
    if arguments or (wish.thinks and wish.effort is None and _DEGREE.search(template)):
        return arguments
    return None if wish.thinks or _DEGREE.search(template) else {}


def template_of(ready: ReadyModel) -> str:
    """A model's chat template; empty where another engine keeps it to itself."""
    return ready.loaded.text.chat_template if isinstance(ready.loaded, LoadedModel) else ""
