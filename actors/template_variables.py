"""What a caller may tell a chat template besides the conversation, and `reasoning_effort` in the words that the template knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tripower.runtime.engine import ChatOptions
from tripower.runtime.kernel import InvalidRequest

RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token", "unk_token", "pad_token"}
)
"""Variables that are the conversation itself, or that only the model file knows."""
VARIABLES_MAX = 64
EFFORT = "reasoning_effort"
SWITCH = "enable_thinking"
"""How families name it that can think or not, and no more."""


def known_variables(options: ChatOptions, template: str) -> ChatOptions:
    """The same options, with what this template understands. Raises `InvalidRequest` naming a variable that is not to be given."""
    arguments: dict[str, Any] = dict(options.arguments)
    if len(arguments) > VARIABLES_MAX:
        raise InvalidRequest(f"chat_template_kwargs has at most {VARIABLES_MAX} entries", param="chat_template_kwargs")
    for name in RESERVED & arguments.keys():
        raise InvalidRequest(
            f"chat_template_kwargs: {name} is not to be given there: it comes from the request or the model file",
            param="chat_template_kwargs",
        )
    if EFFORT in arguments and EFFORT not in template:
        arguments = _switched(arguments, template)
    return msgspec.structs.replace(options, arguments=arguments)


def _switched(arguments: Mapping[str, Any], template: str) -> dict[str, Any]:
    """An effort for a template that knows none: thinking on or off, where it knows that."""
    others = {name: value for name, value in arguments.items() if name != EFFORT}
    effort = arguments[EFFORT]
    if SWITCH in template:
        return {SWITCH: effort != "none"} | others
    if effort == "none":
        return others  # a model that does not think does as it is told
    raise InvalidRequest(
        f"{EFFORT}: this model has no separate reasoning; leave it out", code="unsupported_by_model", param=EFFORT
    )
