"""The table of families: how each marks its tool calls and its reasoning, and by what a template shows which one it is.

A template that writes no markup known here is treated like one that knows no tools: the tools are described in a preamble of ours,
and calls are read as that preamble asks for them. So a forced call can be forced for every model that has a template at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are written. A call is a JSON object with a name and with arguments, unless `named`."""

    name: str
    begin: str
    """What opens a call, or a list of calls."""
    end: str = ""
    """What closes one."""
    before: str = ""
    after: str = ""
    """What an enforced call has between its markers and its object."""
    between: str | None = None
    """What an enforced answer has between two calls; None: it holds only one."""
    listed: bool = False
    """Whether one `begin` opens a JSON list of calls."""
    bare: bool = False
    """Whether an answer that begins with `{` may be a call without a marker. An enforced call has none either."""
    chained: str = ""
    """What may stand between two calls without markers."""
    named: str = ""
    """What stands between a call's name and the object of its arguments, where the call itself is no object."""
    arguments: str = "arguments"
    described: bool = False
    """Whether the template knows nothing of it, so that a preamble of ours has to say it."""
    id_length: int = 0
    """How long an id is that the template takes; 0: as long as it likes."""


class ThoughtFormat(msgspec.Struct, frozen=True):
    """What opens and closes the reasoning before an answer."""

    begin: str
    end: str


HERMES = ToolFormat(name="hermes", begin="<tool_call>", end="</tool_call>", before="\n", after="\n", between="\n")
LLAMA = ToolFormat(name="llama", begin="<|python_tag|>", bare=True, chained=";", arguments="parameters")
MISTRAL = ToolFormat(name="mistral", begin="[TOOL_CALLS]", before="[", after="]", between=", ", listed=True, id_length=9)
MISTRAL_NAMED = ToolFormat(name="mistral-named", begin="[TOOL_CALLS]", named="[ARGS]", between="", id_length=9)
GEMMA = ToolFormat(name="gemma", begin="```tool_code", end="```", before="\n", after="\n", between="\n", described=True)
GENERIC = msgspec.structs.replace(HERMES, name="generic", described=True)

THINK = ThoughtFormat("<think>", "</think>")

_TOOLS = re.compile(r"\btools\b")
_OTHER_MARKUP = re.compile(r"<function=|<arg_key>")
"""Families whose calls are no JSON objects, though their first marker is one of the table's."""
_KNOWN = (
    (re.compile(r"\[ARGS\]"), MISTRAL_NAMED),
    (re.compile(r"\[TOOL_CALLS\]"), MISTRAL),
    (re.compile(r"<tool_call>"), HERMES),
    (re.compile(r"<\|python_tag\|>"), LLAMA),
)
_GEMMA = re.compile(r"<start_of_turn>")


def tool_format(template: str) -> ToolFormat:
    """The format of the model that this template belongs to."""
    if _TOOLS.search(template) and not _OTHER_MARKUP.search(template):
        for sign, found in _KNOWN:
            if sign.search(template):
                return found
    return GEMMA if _GEMMA.search(template) else GENERIC


def thought_format(template: str, control_texts: Iterable[str] = ()) -> ThoughtFormat | None:
    """The reasoning that this template's model writes; None where nothing shows that it does."""
    return THINK if THINK.end in template or THINK.begin in template or THINK.begin in control_texts else None
