"""A conversation through a model's chat template, and what the template tells of the model's answers.

A template that knows no tools, or writes calls in no way that is known here, gets a conversation without any: see
`formats.preamble`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from tripower.backends.text.formats.family import thought_format, tool_format
from tripower.backends.text.formats.plan import Opening, control_token
from tripower.backends.text.formats.preamble import as_plain_conversation
from tripower.backends.text.formats.variables import (
    DEVELOPER,
    argument_variables,
    check_options,
    message_variables,
    texts_of,
    tool_variables,
)
from tripower.backends.text.literal_text import LiteralText
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.backends.text.template import ChatTemplate
from tripower.runtime.engine.contract import PLAIN_CHAT, ChatMessage, ChatOptions
from tripower.runtime.kernel.errors import InvalidRequest

_KNOWS_DEVELOPER = re.compile(r"['\"]developer['\"]")
_PROBE = "probe"


class Conversation:
    """Renders with one template; an empty one is none. Synchronous, safe to use from any thread."""

    def __init__(self, template: str, control: SpecialTokens, special_texts: Mapping[str, str]) -> None:
        self._template = ChatTemplate(template) if template else None
        self._control = control
        self._special_texts = special_texts
        self._developer = DEVELOPER if _KNOWS_DEVELOPER.search(template) else "system"
        self.tools = tool_format(template)
        known = ("<think>",) if control_token(control, "<think>") is not None else ()
        self.thought = thought_format(template, known)

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> tuple[str, LiteralText]:
        """The template's output, with marks where the caller's texts hold control texts. Raises `InvalidRequest`."""
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template: use /v1/completions, or a model that was tuned for conversations",
                code="chat_template_missing",
                param="messages",
            )
        check_options(options)
        literal = LiteralText(texts_of(messages, options), self._control)
        tools = options.tools
        if self.tools.described:
            messages = as_plain_conversation(messages, tools, self.tools, has_system=not tools or self._has_system)
            tools = ()
        variables = message_variables(messages, literal.mark, self.tools, developer=self._developer)
        if options.continue_final_message:
            if not variables:
                raise InvalidRequest("there is no message to continue", param="messages")
            variables[-1]["content"] += literal.end_mark
        text = self._template.render(
            variables,
            special_texts=self._special_texts,
            add_generation_prompt=options.add_generation_prompt and not options.continue_final_message,
            continue_final_message=options.continue_final_message,
            tools=tool_variables(tools, literal.mark),
            arguments=argument_variables(options.arguments, literal.mark),
        )
        return (_up_to(literal.end_mark, text) if options.continue_final_message else text), literal

    def opening(self, options: ChatOptions) -> Opening:
        """Whether an answer to a conversation with these options begins with reasoning, as a prompt with them tells."""
        if self.thought is None or self._template is None:
            return "none"
        if options.continue_final_message or not options.add_generation_prompt:
            return "possible"
        try:
            text, _ = self.render([ChatMessage("user", _PROBE)], msgspec.structs.replace(options, tools=()))
        except InvalidRequest:  # a template that wants another conversation: the answer itself will tell
            return "possible"
        prompt = text[text.rfind(_PROBE) :]
        opened, closed = prompt.rfind(self.thought.begin), prompt.rfind(self.thought.end)
        return "possible" if opened == closed else "opened" if opened > closed else "none"

    @cached_property
    def _has_system(self) -> bool:
        """Whether the template takes a system message."""
        try:
            self.render([ChatMessage("system", _PROBE), ChatMessage("user", _PROBE)])
        except InvalidRequest:
            return False
        return True


def _up_to(mark: str, text: str) -> str:
    end = text.rfind(mark)
    if end < 0:
        raise InvalidRequest(
            "the chat template does not write the last message, so it cannot be continued",
            code="template_failed",
            param="messages",
        )
    return text[:end].replace(mark, "")
