"""Plans how an answer is read and what it is held to, from the tools, the choice among them and the caller's format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs

from tripower.backends.text.formats.family import ThoughtFormat, ToolFormat
from tripower.backends.text.formats.grammar import AnswerGrammar
from tripower.backends.text.formats.reader import MarkedReader, new_call_id
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.runtime.engine.answer import AnswerPlan, PlainReader, ToolChoice
from tripower.runtime.engine.constraint import OutputFormat
from tripower.runtime.engine.contract import ToolDefinition
from tripower.runtime.engine.tool_names import TOOLS_MAX, check_tool_name
from tripower.runtime.kernel.errors import InvalidRequest

Opening = Literal["none", "possible", "opened"]
"""Whether an answer may have reasoning, or has it from its first character on since the prompt opens it."""


@attrs.frozen(kw_only=True)
class AnswerFormats:
    """What a text layer knows of its model's answers."""

    tools: ToolFormat
    thought: ThoughtFormat | None
    control: SpecialTokens
    new_id: Callable[[], str] = new_call_id

    def plan(
        self, tools: Sequence[ToolDefinition], choice: ToolChoice, asked: OutputFormat | None, opening: Opening
    ) -> AnswerPlan:
        """See `TextLayer.plan_answer`."""
        offered = offered_tools(tools, choice)
        thought = self.thought if opening != "none" else None
        if not offered and thought is None:
            return AnswerPlan(new_reader=PlainReader, format=asked)
        form = self.tools if offered else None
        texts = [*((form.begin, form.end, form.named) if form else ()), *((thought.begin, thought.end) if thought else ())]
        markers = {text: token for text in texts if (token := control_token(self.control, text)) is not None}

        def new_reader() -> MarkedReader:
            return MarkedReader(
                thought=thought,
                thinking=opening == "opened",
                tools=form,
                names=[tool.name for tool in offered],
                parallel=choice.parallel,
                new_id=self.new_id,
            )

        enforced = self._enforce(AnswerGrammar(markers), offered, choice, asked, opening)
        return AnswerPlan(new_reader=new_reader, format=enforced, visible=frozenset(markers.values()))

    def _enforce(
        self,
        grammar: AnswerGrammar,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        asked: OutputFormat | None,
        opening: Opening,
    ) -> OutputFormat | None:
        """What the text is held to.

        1. A call must be made: calls and nothing else.
        2. The caller wants a format: a document in it, or calls where tools are offered.
        3. A tool is strict and its format has a marker: any text, but what follows the marker is a call.
        4. Nothing.
        """
        parallel = choice.parallel
        if is_forced(choice):
            answer = grammar.calls(self.tools, tools, parallel=parallel)
        elif asked is not None:
            calls = grammar.calls(self.tools, tools, parallel=parallel) + " | " if tools else ""
            answer = calls + grammar.document(asked)
        elif any(tool.strict for tool in tools) and not self.tools.bare:
            answer = grammar.text_with_calls(self.tools, tools, parallel=parallel)
        else:
            return None
        if self.thought is None or opening == "none":
            return grammar.lark(answer)
        return grammar.lark(f"{grammar.thought(self.thought, opened=opening == 'opened')} ({answer})")


def is_forced(choice: ToolChoice) -> bool:
    """Whether the answer must be a call."""
    return choice.mode == "required" or (choice.name is not None and choice.mode != "none")


def offered_tools(tools: Sequence[ToolDefinition], choice: ToolChoice) -> Sequence[ToolDefinition]:
    """The tools that this answer may call. Raises `InvalidRequest` for names and choices that cannot be."""
    if len(tools) > TOOLS_MAX:
        raise InvalidRequest(f"there are {len(tools)} tools, more than {TOOLS_MAX}", code="limit_exceeded", param="tools")
    known: set[str] = set()
    for index, tool in enumerate(tools):
        param = f"tools[{index}].function.name"
        check_tool_name(tool.name, param)
        if tool.name in known:
            raise InvalidRequest(f"there are two tools called {tool.name}: give each a name of its own", param=param)
        known.add(tool.name)
    if choice.mode == "none":
        return ()
    if choice.name is not None and choice.name not in known:
        raise InvalidRequest(
            f"tool_choice names {choice.name[:80]!r}, which is none of the tools", param="tool_choice.function.name"
        )
    if is_forced(choice) and not tools:
        raise InvalidRequest(
            "tool_choice asks for a call, but there are no tools: give some, or leave it out", param="tool_choice"
        )
    return tools if choice.name is None else [tool for tool in tools if tool.name == choice.name]


def control_token(control: SpecialTokens, text: str) -> int | None:
    """The control token that is known by this text."""
    parts = list(control.split(text))
    return parts[0] if len(parts) == 1 and isinstance(parts[0], int) else None
