"""The contract between the runtime and an engine that evaluates rows.

A *row* is one position of one sequence in a step. Every method of an engine is synchronous and is called on one lane only: the
thread that owns the device. The runtime never branches on an engine's name; what differs is stated in `EngineInfo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from tripower.runtime.engine.encoder import LaneModel
    from tripower.runtime.speculation.draft_model import DraftModel

from tripower.runtime.engine.answer import AnswerPlan, ToolChoice
from tripower.runtime.engine.constraint import OutputFormat, TokenMask
from tripower.runtime.engine.logprobs import NO_LOGPROBS, RowReport
from tripower.runtime.engine.sampling_parameters import SamplingParameters
from tripower.runtime.engine.step_table import StepTable


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at load of an engine's claim that a row's logits do not depend on the rest of its step."""

    row_counts: int
    """Every number of rows from one up to this was tried."""
    positions: int
    """Positions whose logits were compared, bit by bit."""
    mismatches: int
    """Rows that had other bits than alone; 0, or the engine is not called exact."""


ROW_ABILITIES = ("format", "logprobs", "prompt_logprobs", "min_tokens")
"""What not every engine may have, by the words of a request: masks, reports of draws and of prompts, and bans."""
SPECULATION = "speculation"
"""In the same place, for an engine that draws at one row of a sequence only."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself and of the model it holds."""

    backend: str
    architecture: str
    context_max: int
    """Positions a sequence may have, prompt and output together."""
    vocabulary_size: int
    sequences_max: int
    """Sequences that may be open at once; their memory is admitted at load."""
    parameters: int = 0
    weight_bytes: int = 0
    state_bytes_per_token: int = 0
    page_positions: int = 0
    """Positions of a page that sequences with the same beginning share; 0: the engine does not share, and nothing is reused."""
    pages_max: int = 0
    """Pages of all sequences together, retained ones included."""
    threads: int = 1
    determinism: str = "numeric"
    """`exact`: a row's bits do not depend on its neighbours. `numeric`: near-ties may flip with the batch."""
    certificate: Certificate | None = None
    """Where `determinism` was measured."""
    kernels: str = ""
    """What computes, for people: the code's target, or the library and why it is used."""
    row_costs: tuple[float, ...] = ()
    """What a step with 1, 2, 4, 8, 16, … rows costs, relative to the first, measured at load; empty: not measured. It never changes, so
    what is decided by it is decided again in the same way."""
    unsupported: frozenset[str] = frozenset()
    """Of `ROW_ABILITIES` and `SPECULATION`, what the engine cannot do. Whoever asks for it is refused before there is a seat."""


class StepRow(msgspec.Struct, frozen=True):
    """The rows that one sequence contributes to one step: `tokens` at positions `position`, `position + 1`, …"""

    sequence: int
    position: int
    tokens: tuple[int, ...]
    draw: bool
    """Whether the last row's logits are drawn from. False inside a prompt."""
    output_index: int = 0
    """Number of tokens this sequence has generated so far: keys the draw."""
    sampling: SamplingParameters = SamplingParameters()
    history: Sequence[int] = ()
    """Prompt and output up to and including `tokens`, where penalties need them; else empty."""
    prompt_length: int = 0
    mask: TokenMask | None = None
    """What may be drawn; None: everything."""
    logprobs: int = NO_LOGPROBS
    """Alternatives to tell of at the drawn token; -1: tell nothing."""
    prompt_logprobs: int = NO_LOGPROBS
    """The same at each token of the prompt that follows one of `tokens`."""
    following: int = -1
    """The prompt's token behind `tokens`, where there is one and `prompt_logprobs` asks for it."""
    report: RowReport | None = None
    """Filled by the engine, with the step, where log probabilities are asked for."""
    drafts: int = 0
    """How many of `tokens`, at the end, are guesses. Then a token is drawn at the row before the first of them and, as long as what is
    drawn is the guess, at the next one, each as if the ones before it had come in steps of their own. The step returns the last."""
    masks: Sequence[TokenMask] = ()
    """With `drafts`, where something restricts them: what may be drawn at each of these rows."""
    run: list[int] | None = None
    """With `drafts`: filled by the engine with what was drawn before the last token. The sequence keeps all rows; whoever asked trims."""


class StepEngine(Protocol):
    """One model resident on one device. All methods may block; none may be called off the lane."""

    info: EngineInfo

    def open_sequence(self, sequence: int) -> None:
        """Give an empty state to this id, which the runtime chose; an open one is emptied.

        Raises `DeviceFailed` when there is no memory.
        """

    def sequences(self) -> list[int]:
        """The open ones."""

    def close_sequence(self, sequence: int) -> None:
        """Free the state; an unknown id is ignored."""

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on."""

    def fork(self, source: int, sequence: int, length: int) -> None:
        """Open `sequence` with the first `length` positions of `source`, sharing full pages."""

    def retain(self, sequence: int, length: int) -> None:
        """Trim the sequence to `length` positions. It is only forked from now on, and takes none of the `sequences_max` places.

        Only for engines with `page_positions`. Its pages are still its own, until it is closed.
        """

    def length(self, sequence: int) -> int:
        """Positions evaluated so far."""

    def step(self, rows: Sequence[StepRow]) -> list[int]:
        """Evaluate all rows, or none: on an error every sequence is as before.

        Returns one drawn token for each entry, -1 where `draw` is false. Positions must be dense: `position == length(sequence)`.
        Raises `InvalidRequest` for rows that break the contract, `DeviceFailed` for anything else.
        """

    def run(self, table: StepTable) -> Iterator[None]:
        """Run up to `table.steps_max` steps, committing each to the table, and yield at every boundary where it can stop.

        `runtime.engine.step_loop.run_steps` is the implementation for engines that need Python in every step.
        """

    def close(self) -> None:
        """Free everything. Idempotent."""


class ToolCall(msgspec.Struct, frozen=True):
    """A function that an assistant wants called. `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


class ToolDefinition(msgspec.Struct, frozen=True):
    """A function that an assistant may call. `parameters` is the JSON schema of its arguments; None takes none."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat template gets besides the messages."""

    tools: tuple[ToolDefinition, ...] = ()
    arguments: Mapping[str, Any] = {}
    """Further variables of the template, such as `enable_thinking`."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The last message is not closed: the answer goes on where it ends."""


PLAIN_CHAT = ChatOptions()
ANY_TOOL = ToolChoice()


class TextLayer(Protocol):
    """Text to tokens and back for one model. Synchronous; safe to use from any thread."""

    end_tokens: frozenset[int]
    """The whole end-of-generation set, not only EOS."""
    recommended: SamplingParameters
    """What the model file recommends, else OpenAI's defaults."""
    has_chat_template: bool
    piece_characters_max: int
    """No token stands for more characters than this."""
    chat_template: str
    """Its source; empty where there is none."""
    special_texts: Mapping[str, str]
    """What templates know as `bos_token`, `eos_token`, `unk_token` and `pad_token`; empty texts for those that do not exist."""

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids. `add_special` adds what the vocabulary asks for at the start, once."""

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        """Token ids of a conversation that waits for the assistant. Raises `InvalidRequest` (`chat_template_missing`, …)."""

    def render_text(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> str:
        """The text that `render_chat` tokenises. Raises what it raises."""

    def plan_answer(
        self, options: ChatOptions = PLAIN_CHAT, choice: ToolChoice = ANY_TOOL, asked: OutputFormat | None = None
    ) -> AnswerPlan:
        """How the answer to a conversation with these options is read. `asked` is the format that the caller wants.

        Raises `InvalidRequest` (`unsupported_by_model`) for a choice of tools that cannot be enforced.
        """

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""

    def spelling(self, token: int) -> bytes:
        """`piece`, and for a control token the text by which it is known. Empty for an id outside the vocabulary."""


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant called; `content` may be empty then."""
    tool_call_id: str | None = None
    """Which call a tool answers."""
    reasoning: str | None = None
    """What an assistant thought before it answered."""


class LoadedModel(msgspec.Struct, frozen=True):
    """An engine and its text layer, made by a backend on the lane that will run it."""

    engine: StepEngine
    text: TextLayer
    draft: DraftModel | None = None
    """What guesses for the engine, which closes it and is charged with its memory."""


class DraftSpecification(msgspec.Struct, frozen=True, kw_only=True):
    """A second model that guesses for the one that is loaded."""

    name: str
    """What people know it by."""
    source: str
    """A path on this machine, or what the backend understands as one."""
    sha256: str = ""
    """Of the draft's file, 64 hexadecimal digits; empty: any file will do."""
    target_sha256: str = ""
    """The same of the file that it was made for."""


class LoadSpecification(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend needs to make a model resident."""

    name: str
    source: str
    """A path on this machine, or what the backend understands as one."""
    context: int
    """Positions for each sequence; 0 means as many as the model was trained for and `state_bytes_max` allows."""
    sequences_max: int
    state_bytes_max: int
    threads: int
    prefill_chunk: int
    draft: DraftSpecification | None = None
    """A backend that has no use for one refuses it (`no_draft_here`)."""


Progress = Callable[[str, float], None]
"""Called on the lane with a stage's name and the fraction done, 0 to 1."""


class Backend(Protocol):
    """Makes models resident."""

    name: str

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LaneModel | None]:
        """Yield None at boundaries and the model last. Any failure frees everything and raises `ModelRefused`."""
