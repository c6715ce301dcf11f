"""`POST /v1/responses` as clients send it, and what it becomes for the runtime.

Nothing is kept between requests: the whole conversation is in `input`, as the official client and Codex can send it. Choices:

* `store` unset or false is what is done anyway; `store: true` is accepted aloud, and the answer says `store: false`.
* `previous_response_id`, `conversation`, a stored `prompt` and `background` would need a memory: refused by name.
* Hosted tools run on OpenAI's servers: refused by name. `include` may ask for parts that only they would have.
* `truncation: auto` is accepted aloud: what does not fit is refused, never cut.
* `top_k`, `min_p`, `seed`, `stop` and `ignore_eos` are taken as the chat endpoint takes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.api.http.bodies import LISTED_MAX
from tripower.api.http.dialects.decoding import DialectDecoder, unsupported
from tripower.api.http.dialects.thinking import OFF, ThinkingWish
from tripower.api.http.fields import Unsupported
from tripower.api.http.responses.items import ItemIn, conversation
from tripower.api.http.responses.tools import FunctionIn, NamedToolIn, tool_choice, tool_definitions
from tripower.api.http.text.nesting import check_depth
from tripower.backends.grammar.limits import NESTING_MAX
from tripower.runtime.engine import ChatOptions
from tripower.runtime.engine.constraint import JsonObjectFormat, JsonSchemaFormat, OutputFormat
from tripower.runtime.engine.tool_names import TOOLS_MAX
from tripower.runtime.kernel import InvalidRequest

UINT64 = 1 << 64
STOPS_MAX = 16
Limit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]

PASSED = frozenset(
    {
        "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_retention",
        "prompt_cache_options", "max_tool_calls", "client_metadata", "annotations", "logprobs", "id", "status", "phase",
        "stream_options", "description", "moderation",
    }
)  # fmt: skip
_KEPT = "answers are not kept; leave it out and send the earlier items in input, before the new one"
UNSUPPORTED = {
    "previous_response_id": Unsupported((), _KEPT),
    "conversation": Unsupported((), _KEPT),
    "prompt": Unsupported((), "prompts are not kept; leave it out and send its text as instructions and input"),
    "background": Unsupported((False,), "answers are not kept; leave it out and stream"),
    "top_logprobs": Unsupported((0,), "leave it out; log probabilities come with /v1/chat/completions"),
}
INCLUDED = frozenset(
    {
        "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
        "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    }
)  # fmt: skip
"""What may be asked for without effect: thoughts come in plain text, and the others do not occur."""


class FormatIn(msgspec.Struct, frozen=True, kw_only=True):
    """`text`, `json_object` or `json_schema`."""

    type: str
    name: str | None = None
    schema: Any = None
    strict: bool | None = None


class TextConfigIn(msgspec.Struct, frozen=True):
    """What the text of an answer should be like."""

    format: FormatIn | None = None
    verbosity: str | None = None


class ReasoningIn(msgspec.Struct, frozen=True):
    """How much to think. Summaries are not made: thoughts come as they are."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None


class ResponseIn(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/responses`."""

    input: str | Annotated[tuple[ItemIn, ...], Meta(max_length=LISTED_MAX)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Limit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Fraction | None = None
    seed: int | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Meta(max_length=STOPS_MAX)] | None = None
    prompt_cache_key: str | None = None
    ignore_eos: bool | None = None
    tools: Annotated[tuple[FunctionIn, ...], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: str | NamedToolIn | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfigIn | None = None
    reasoning: ReasoningIn | None = None
    store: bool | None = None
    include: tuple[str, ...] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None

    def check(self) -> None:
        """Types say everything that can be said before the items are translated."""

    def ignored(self) -> tuple[str, ...]:
        """Values that have no effect here and are named for it."""
        told = {"store": bool(self.store), "truncation": self.truncation == "auto"}
        return tuple(name for name, is_told in told.items() if is_told)

    def thinking_wish(self) -> ThinkingWish | None:
        effort = self.reasoning.effort if self.reasoning is not None else None
        return None if effort is None else ThinkingWish("reasoning.effort", effort != OFF, effort)

    def generation(self, model: str) -> GenerationRequest:
        """Raises `InvalidRequest`."""
        for index, name in enumerate(self.include or ()):
            if name not in INCLUDED:
                raise unsupported(f"include[{index}]: {name[:64]}", f"known are {', '.join(sorted(INCLUDED))}")
        tools = tool_definitions(self.tools or ())
        choice = tool_choice(self.tool_choice, tools, parallel=self.parallel_tool_calls is not False)
        return GenerationRequest(
            model=model,
            messages=conversation(self.instructions, self.input),
            max_tokens=self.max_output_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else self.stop or (),
            ignore_eos=bool(self.ignore_eos),
            sampling=self.sampling(),
            prompt_cache_key=self.prompt_cache_key,
            format=self.output_format(),
            format_param="text.format.schema" if self.text and self.text.format and self.text.format.schema else "text.format",
            chat=ChatOptions(tools=() if choice.mode == "none" else tools),
            tool_choice=choice,
        )

    def sampling(self) -> SamplingChoices:
        """Raises `InvalidRequest`."""
        if self.seed is not None and not -(UINT64 >> 1) <= self.seed < UINT64:
            raise InvalidRequest("seed has at most 64 bits", param="seed")
        return SamplingChoices(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,
            min_p=self.min_p,
            seed=None if self.seed is None else self.seed % UINT64,
        )

    def output_format(self) -> OutputFormat | None:
        """What the text has to look like. Raises `InvalidRequest`."""
        asked = self.text or TextConfigIn()
        if asked.verbosity not in (None, "medium"):
            raise unsupported("text.verbosity", "say in the prompt how long the answer should be")
        if asked.format is None or asked.format.type == "text":
            return None
        if asked.format.type == "json_object":
            return JsonObjectFormat()
        if asked.format.type != "json_schema":
            raise unsupported(f"text.format.type: {asked.format.type[:40]}", "use text, json_object or json_schema")
        if not isinstance(asked.format.schema, dict):
            raise InvalidRequest("text.format.schema is missing: give a JSON schema", param="text.format.schema")
        check_depth(asked.format.schema, "text.format.schema", NESTING_MAX)
        return JsonSchemaFormat(asked.format.schema)


RESPONSE = DialectDecoder[ResponseIn](ResponseIn, passed=PASSED, unsupported=UNSUPPORTED)
