"""Reads an answer with marked reasoning and marked calls, as its text comes.

One state at a time: the answer's start, reasoning, content, an attempt at a call, behind a call. A state takes a text and answers
what it leaves to the next one. What only begins like a marker is held until it is one or not. An attempt keeps its text until it
shows a tool that was offered and the beginning of its arguments; if it fails before, its marker is content and the rest is read
again. From then on its arguments are told as they come; if they break off as JSON, the call stays as it was told, does not count as
complete, and the text from there on is content.

Text is taken in short pieces, so that reading a failed attempt again costs no more than a constant for each character.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

from tripower.backends.text.formats.call_text import CallText
from tripower.backends.text.formats.family import ThoughtFormat, ToolFormat
from tripower.backends.text.formats.named_call import NamedCall
from tripower.backends.text.formats.trimmed import TrimmedText, joined
from tripower.runtime.engine.answer import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta

PIECE_CHARACTERS = 2_048


def new_call_id() -> str:
    """An id that nobody can guess: `call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"


class MarkedReader:
    """Implements `AnswerReader`. `thinking`: the prompt has opened the reasoning already. `names` are the tools that may be called.

    Without `parallel` only the first call is one. Cost is linear in the text; what is held is bounded but for white space.
    """

    def __init__(
        self,
        *,
        thought: ThoughtFormat | None = None,
        thinking: bool = False,
        tools: ToolFormat | None = None,
        names: Collection[str] = (),
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.complete_calls = 0
        self._thought = thought
        self._tools = tools
        self._names = frozenset(names)
        self._parallel = parallel
        self._new_id = new_id
        self._out: list[AnswerDelta] = []
        self._content = TrimmedText(ContentDelta, self._out)
        self._reasoning = TrimmedText(ReasoningDelta, self._out)
        self._held = ""
        self._begun = 0
        self._call: CallText | NamedCall | None = None
        self._marker = ""
        self._raw: list[str] = []
        self._in_list = False
        self._state: Callable[[str], str] = self._at_start
        if thinking:
            self._think()

    def push(self, text: str) -> list[AnswerDelta]:
        """See `AnswerReader`."""
        for start in range(0, len(text), PIECE_CHARACTERS):
            self._take(text[start : start + PIECE_CHARACTERS])
        found = joined(self._out)
        self._out.clear()
        return found

    def finish(self, text: str = "") -> list[AnswerDelta]:
        """See `AnswerReader`. A call that is not at its end stays as it was told; what never became one is content."""
        told = self.push(text)
        while self._state in (self._in_call, self._at_list) and not (self._call and self._call.ready):
            self._take(self._give_up(""))
        if self._state != self._behind_call:  # there it is the beginning of what closes the call
            (self._reasoning if self._state == self._in_thought else self._content).add(self._held)
        self._held = ""
        self._reasoning.finish()
        self._content.finish()
        return joined([*told, *self._out])

    def _take(self, text: str) -> None:
        while text:
            text, self._held = self._held + text, ""
            text = self._state(text)

    def _at_start(self, text: str) -> str:
        """Nothing was said: reasoning may begin here, and a call without a marker."""
        body = text.lstrip()
        self._content.add(text[: len(text) - len(body)])
        if self._thought is not None and body.startswith(self._thought.begin):
            self._think()
            return body[len(self._thought.begin) :]
        if not body or (self._thought is not None and self._thought.begin.startswith(body)):
            self._held = body
            return ""
        if self._tools is not None and self._tools.bare and body[0] == "{":
            self._attempt("")
        else:
            self._state = self._in_content
        return body

    def _think(self) -> None:
        self._content.marker()
        self._reasoning.marker()
        self._state = self._in_thought

    def _in_thought(self, text: str) -> str:
        assert self._thought is not None
        thought, found, rest = self._cut(text, self._thought.end)
        self._reasoning.add(thought)
        if found:
            self._reasoning.marker()
            self._content.marker()
            self._thought = None  # there is one at most
            self._state = self._at_start
        return rest

    def _in_content(self, text: str) -> str:
        if self._tools is None or (self._begun and not self._parallel):
            self._content.add(text)
            return ""
        said, found, rest = self._cut(text, self._tools.begin)
        self._content.add(said)
        if found:
            self._attempt(self._tools.begin)
            self._state = self._at_list if self._tools.listed else self._in_call
        return rest

    def _cut(self, text: str, marker: str) -> tuple[str, bool, str]:
        """What stands before a marker, whether it is there, what stands behind. Holds what may be its beginning."""
        before, found, behind = text.partition(marker)
        if not found:
            before, self._held = _hold(text, marker)
        return before, bool(found), behind

    def _attempt(self, marker: str) -> None:
        assert self._tools is not None
        named = self._tools.named
        self._call = NamedCall(self._names, named) if named else CallText(self._names)
        self._marker = marker
        self._raw.clear()
        self._in_list = False
        self._state = self._in_call

    def _at_list(self, text: str) -> str:
        """Behind a marker that opens a list; one call without a list will do."""
        body = text.lstrip()
        self._raw.append(text[: len(text) - len(body)])
        if body[:1] == "[":
            self._raw.append("[")
            self._in_list = True
            body = body[1:]
        if body or self._in_list:
            self._state = self._in_call
        return body

    def _in_call(self, text: str) -> str:
        call = self._call
        assert call is not None
        told = call.ready
        end = call.feed(text)
        if not call.ready:
            self._raw.append(text[:end])
            return self._give_up(text[end:]) if call.broken else ""
        if not told:
            self._content.marker()
            self._out.append(ToolCallDelta(self._begun, self._new_id(), call.name))
            self._begun += 1
        if piece := call.take():
            self._out.append(ToolCallDelta(self._begun - 1, arguments=piece))
        if call.complete:
            self.complete_calls += 1
            self._state = self._behind_call
        elif call.broken:
            self._content.resume()
            self._state = self._in_content
        return text[end:]

    def _give_up(self, rest: str) -> str:
        """The attempt is text: its marker (or first character) is content, the rest is to be read again."""
        raw = "".join(self._raw)
        self._content.add(self._marker or raw[:1])
        self._state = self._in_content
        return (raw if self._marker else raw[1:]) + rest

    def _behind_call(self, text: str) -> str:
        """Drops what closes a call, and goes on with the next one of a list or chain."""
        assert self._tools is not None
        body = text.lstrip()
        closing = "]" if self._in_list else self._tools.end
        following = "," if self._in_list else self._tools.chained
        if closing and body.startswith(closing):
            self._state = self._in_content
            return body[len(closing) :]
        if following and body.startswith(following) and self._parallel:
            in_list = self._in_list
            self._attempt(following)
            self._in_list = in_list
            return body[len(following) :]
        if not body or (closing and closing.startswith(body)):
            self._held = body
            return ""
        self._state = self._in_content
        return body


def _hold(text: str, marker: str) -> tuple[str, str]:
    """The text without what may be the beginning of the marker, and that."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return text[:-length], text[-length:]
    return text, ""
