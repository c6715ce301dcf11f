"""The text layer of a model: its tokenizer, its chat template, its end tokens and what it recommends for sampling.

`TemplatedTextLayer` is all of it for any tokenizer; `GgufTextLayer` fills it from a GGUF file, `tokenizer_json.layer` from a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tripower.backends.gguf.cursor import STRING_BYTES_MAX
from tripower.backends.gguf.metadata import Metadata, get_float, get_int, get_string
from tripower.backends.model_file import ModelFile
from tripower.backends.text.conversation import Conversation
from tripower.backends.text.formats.plan import AnswerFormats
from tripower.backends.text.formats.reader import new_call_id
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.backends.text.tokenizer import GgufTokenizer
from tripower.runtime.engine.answer import AnswerPlan, ToolChoice
from tripower.runtime.engine.constraint import OutputFormat
from tripower.runtime.engine.contract import ANY_TOOL, PLAIN_CHAT, ChatMessage, ChatOptions
from tripower.runtime.engine.sampling_parameters import SamplingParameters

TEMPLATE_KEY = "tokenizer.chat_template"
TEMPERATURE_MAX = 100.0
PENALTY_MAX = 100.0


class LayerTokenizer(Protocol):
    """What a text layer needs of a tokenizer. Synchronous, safe to use from any thread."""

    @property
    def control_texts(self) -> SpecialTokens:
        """The tokens that only a template may write."""

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """See `TextLayer.tokenize`. Raises `InvalidRequest` for half of a surrogate pair."""

    def tokenize_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Ids of plain stretches, in which no control token is recognised, and of tokens between them."""

    def add_begin(self, ids: list[int]) -> list[int]:
        """Put the begin token in front where the vocabulary asks for it, unless it is there."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens and ids outside the vocabulary."""

    def control_text(self, token: int) -> str:
        """The text of a token that stands for no bytes; empty for ids outside the vocabulary."""


class TemplatedTextLayer:
    """Implements `runtime.engine.contract.TextLayer` with a tokenizer and a chat template. Safe to use from any thread.

    An empty `template` is none; a broken one does not refuse the model, it fails each chat. `special_texts` are what templates
    know as `bos_token` and the like.
    """

    new_call_id: Callable[[], str] = staticmethod(new_call_id)
    """Makes the ids of calls; a test may put its own here."""

    def __init__(
        self,
        tokenizer: LayerTokenizer,
        *,
        template: str,
        end_tokens: frozenset[int],
        recommended: SamplingParameters,
        special_texts: Mapping[str, str],
        piece_characters_max: int,
    ) -> None:
        self.end_tokens = end_tokens
        self.recommended = recommended
        self.piece_characters_max = piece_characters_max
        self._tokenizer = tokenizer
        self._conversation = Conversation(template, tokenizer.control_texts, special_texts)
        self.has_chat_template = bool(template)
        self.chat_template = template
        self.special_texts = special_texts

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids, linear in the length of the text; see the tokenizer's own."""
        return self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        """Token ids of a conversation that waits for the assistant, with the begin token exactly once.

        Text of the template is recognised as control tokens; text of messages, tools and arguments never is. Raises
        `InvalidRequest`: `chat_template_missing`, `template_failed`, `template_budget_exceeded`, `invalid_value`.
        """
        text, literal = self._conversation.render(messages, options)
        parts = self._tokenizer.control_texts.split(text)
        ids = self._tokenizer.tokenize_parts(part if isinstance(part, int) else literal.restore(part) for part in parts)
        return self._tokenizer.add_begin(ids)

    def render_text(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> str:
        """The text that `render_chat` tokenises, for people: it does not tell a control token from its text in a message."""
        text, literal = self._conversation.render(messages, options)
        return literal.restore(text)

    def plan_answer(
        self, options: ChatOptions = PLAIN_CHAT, choice: ToolChoice = ANY_TOOL, asked: OutputFormat | None = None
    ) -> AnswerPlan:
        """How the model's family writes reasoning and calls, and what holds the answer to the choice of tools.

        Tools are in the prompt for `none` too, but nothing is read as a call then. Blocks for milliseconds where something is
        enforced. Raises `InvalidRequest`: `invalid_value` for names and choices that cannot be, `invalid_schema`,
        `unsupported_schema` for arguments that cannot be enforced.
        """
        conversation = self._conversation
        formats = AnswerFormats(
            tools=conversation.tools,
            thought=conversation.thought,
            control=self._tokenizer.control_texts,
            new_id=self.new_call_id,
        )
        return formats.plan(options.tools, choice, asked, conversation.opening(options))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""
        return self._tokenizer.piece(token)

    def spelling(self, token: int) -> bytes:
        """The same, and for a control token its text."""
        return self._tokenizer.piece(token) or self._tokenizer.control_text(token).encode()


class GgufTextLayer(TemplatedTextLayer):
    """The text layer of a GGUF model. Holds no reference to the file.

    `chat_template` replaces the file's own. Building takes a second or two for a large SentencePiece vocabulary and raises
    `ModelRefused`, naming the key.
    """

    def __init__(self, file: ModelFile, *, chat_template: str | None = None) -> None:
        metadata = file.metadata
        recommended = recommended_sampling(metadata)
        self.tokenizer = GgufTokenizer(metadata)
        vocabulary = self.tokenizer.vocabulary
        own = get_string(metadata, TEMPLATE_KEY, "", STRING_BYTES_MAX) if chat_template is None else chat_template
        super().__init__(
            self.tokenizer,
            template=own,
            end_tokens=vocabulary.end_tokens,
            recommended=recommended,
            special_texts=_special_texts(self.tokenizer),
            piece_characters_max=max(len(text) for text in vocabulary.tokens),
        )


def recommended_sampling(metadata: Metadata) -> SamplingParameters:
    """What `general.sampling.*` asks for; OpenAI's defaults where it is silent."""
    neutral = SamplingParameters()
    prefix = "general.sampling."
    return SamplingParameters(
        temperature=get_float(metadata, prefix + "temp", neutral.temperature, 0.0, TEMPERATURE_MAX),
        top_k=max(0, get_int(metadata, prefix + "top_k", neutral.top_k, -1)),
        top_p=get_float(metadata, prefix + "top_p", neutral.top_p, 0.0, 1.0),
        min_p=get_float(metadata, prefix + "min_p", neutral.min_p, 0.0, 1.0),
        repeat_penalty=get_float(metadata, prefix + "penalty_repeat", neutral.repeat_penalty, 0.01, PENALTY_MAX),
        repeat_last_n=get_int(metadata, prefix + "penalty_last_n", neutral.repeat_last_n, -1),
    )


def _special_texts(tokenizer: GgufTokenizer) -> dict[str, str]:
    vocabulary = tokenizer.vocabulary
    return {
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
        "unk_token": vocabulary.text(vocabulary.unknown),
        "pad_token": vocabulary.text(vocabulary.padding),
    }
