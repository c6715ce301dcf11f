"""`POST /v1/messages` as clients send it, and what it becomes for the runtime.

Choices where the dialect leaves them, or asks for what is not here:

* `max_tokens` is needed, as with Anthropic. An answer that may be longer than the context has room for gets the room there is, and
  then ends with `model_context_window_exceeded`: clients made for large contexts ask for tens of thousands of tokens.
* Blocks of text within one message are joined by a line break.
* With `tool_choice: none` the template is not told of the tools, as in a chat.
* A conversation that ends with the assistant is continued where it ends.
* `thinking` and `output_config.effort` go where the chat template has words for them; else they are named as ignored. A budget of
  thoughts is not kept. Thoughts come without a signature.
* Prompt caching, `context_management`, `container` and betas change no answer here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.dialects.decoding import DialectDecoder, unsupported
from tripower.api.http.dialects.thinking import ThinkingWish
from tripower.api.http.fields import Unsupported
from tripower.api.http.messages.blocks import Blocks, MessageIn, conversation
from tripower.api.http.messages.tools import ToolChoiceIn, ToolIn, tool_choice, tool_definitions
from tripower.api.http.text.nesting import check_depth
from tripower.backends.grammar.limits import NESTING_MAX
from tripower.runtime.engine import ChatMessage, ChatOptions, ToolChoice, ToolDefinition
from tripower.runtime.engine.constraint import JsonSchemaFormat, OutputFormat
from tripower.runtime.engine.tool_names import TOOLS_MAX
from tripower.runtime.kernel import InvalidRequest

STOPS_MAX = 16
Limit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]

PASSED = frozenset({"metadata", "service_tier", "inference_geo", "cache_control", "citations", "signature", "caller", "id"})
UNSUPPORTED = {
    "mcp_servers": Unsupported(([],), "this server calls no other; describe their tools and run them"),
    "container": Unsupported((), "this server runs no tools"),
}


class ThinkingIn(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to think before the answer. `budget_tokens` is not kept."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Limit | None = None
    display: str | None = None


class FormatIn(msgspec.Struct, frozen=True, kw_only=True):
    """What the text has to look like."""

    type: str
    schema: Any = None


class OutputConfigIn(msgspec.Struct, frozen=True, kw_only=True):
    """How much to think, and what the text has to look like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: FormatIn | None = None


class PromptIn(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints share: everything that is part of the prompt."""

    messages: Annotated[tuple[MessageIn, ...], Meta(min_length=1, max_length=LISTED_MAX)]
    model: str | None = None
    system: str | Blocks | None = None
    tools: Annotated[tuple[ToolIn, ...], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: ToolChoiceIn | None = None
    thinking: ThinkingIn | None = None
    output_config: OutputConfigIn | None = None

    def check(self) -> None:
        """Types say everything that can be said before the messages are translated."""

    def thinking_wish(self) -> ThinkingWish | None:
        effort = self.output_config.effort if self.output_config is not None else None
        if self.thinking is None:
            return None if effort is None else ThinkingWish("output_config.effort", True, effort)
        return ThinkingWish("thinking", self.thinking.type != "disabled", effort)

    def conversation(self) -> tuple[ChatMessage, ...]:
        """Raises `InvalidRequest`."""
        return conversation(self.system, self.messages)

    def choice(self, tools: tuple[ToolDefinition, ...]) -> ToolChoice:
        """Raises `InvalidRequest`."""
        return tool_choice(self.tool_choice, tools)

    def chat_options(self, messages: tuple[ChatMessage, ...]) -> ChatOptions:
        """Raises `InvalidRequest`."""
        continues = messages[-1].role == "assistant"
        tools = tool_definitions(self.tools or ())
        if continues and messages[-1].tool_calls:
            raise InvalidRequest("messages: the last tool_use has no tool_result", param="messages")
        return ChatOptions(
            tools=() if self.choice(tools).mode == "none" else tools,
            add_generation_prompt=not continues,
            continue_final_message=continues,
        )


class MessagesIn(PromptIn, frozen=True, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: Limit
    stream: bool | None = None
    stop_sequences: Annotated[tuple[StopString, ...], Meta(max_length=STOPS_MAX)] | None = None
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    output_format: FormatIn | None = None

    def ignored(self) -> tuple[str, ...]:
        """Values that have no effect here and are named for it."""
        has_budget = self.thinking is not None and self.thinking.budget_tokens is not None
        return ("thinking.budget_tokens",) if has_budget else ()

    def generation(self, model: str) -> GenerationRequest:
        """Raises `InvalidRequest`."""
        messages = self.conversation()
        chat = self.chat_options(messages)
        return GenerationRequest(
            model=model,
            messages=messages,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or (),
            sampling=SamplingChoices(
                temperature=self.temperature, top_p=self.top_p, top_k=0 if self.top_k == -1 else self.top_k
            ),
            format=self._output_format(),
            format_param="output_format.schema" if self.output_format is not None else "output_config.format.schema",
            chat=chat,
            tool_choice=self.choice(chat.tools),
        )

    def _output_format(self) -> OutputFormat | None:
        field, asked = "output_format", self.output_format
        if self.output_config is not None and self.output_config.format is not None:
            field, asked = "output_config.format", self.output_config.format
        if asked is None:
            return None
        if asked.type != "json_schema":
            raise unsupported(f"{field}.type: {asked.type[:40]}", "use json_schema")
        if not isinstance(asked.schema, dict):
            raise InvalidRequest(f"{field}.schema is missing: give a JSON schema", param=f"{field}.schema")
        check_depth(asked.schema, f"{field}.schema", NESTING_MAX)
        return JsonSchemaFormat(asked.schema)


class CountTokensIn(PromptIn, frozen=True, kw_only=True):
    """`POST /v1/messages/count_tokens`."""


MESSAGES = DialectDecoder[MessagesIn](MessagesIn, passed=PASSED, unsupported=UNSUPPORTED)
COUNT_TOKENS = DialectDecoder[CountTokensIn](CountTokensIn, passed=PASSED, unsupported=UNSUPPORTED)
