"""The text layer of a model: its tokenizer, its chat template, its end tokens and what it recommends for sampling.

`TemplatedTextLayer` is all of it for any tokenizer; `GgufTextLayer` fills it from a GGUF file, `tokenizer_json.layer` from a
checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tripower.backends.gguf.cursor import STRING_BYTES_MAX
from tripower.backends.gguf.metadata import Metadata, get_float, get_int, get_string
from tripower.backends.model_file import ModelFile
from tripower.backends.text.literal_text import LiteralText
from tripower.backends.text.special_tokens import SpecialTokens
from tripower.backends.text.template import ChatTemplate
from tripower.backends.text.tokenizer import GgufTokenizer
from tripower.runtime.engine.answer import AnswerPlan, PlainReader, ToolChoice
from tripower.runtime.engine.constraint import OutputFormat
from tripower.runtime.engine.contract import ANY_TOOL, PLAIN_CHAT, ChatMessage, ChatOptions
from tripower.runtime.engine.sampling_parameters import SamplingParameters
from tripower.runtime.kernel.errors import InvalidRequest

TEMPLATE_KEY = "tokenizer.chat_template"
DEVELOPER = "developer"
"""A role that most templates do not know: they get it as `system`, which it has taken the place of."""
_KNOWS_DEVELOPER = re.compile(r"['\"]developer['\"]")
TEMPERATURE_MAX = 100.0
PENALTY_MAX = 100.0
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


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
        self._template = ChatTemplate(template) if template else None
        self.has_chat_template = self._template is not None
        self._developer = DEVELOPER if _KNOWS_DEVELOPER.search(template) else "system"
        self.chat_template = template
        self.special_texts = special_texts

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids, linear in the length of the text; see the tokenizer's own."""
        return self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        """Token ids of a conversation that waits for the assistant, with the begin token exactly once.

        Text of the template is recognised as control tokens, text of messages never. Raises `InvalidRequest`:
        `chat_template_missing`, `template_failed`, `template_budget_exceeded`, `invalid_value` for an unknown role.
        """
        text, literal = self._render(messages)
        parts = self._tokenizer.control_texts.split(text)
        ids = self._tokenizer.tokenize_parts(part if isinstance(part, int) else literal.restore(part) for part in parts)
        return self._tokenizer.add_begin(ids)

    def render_text(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> str:
        """The text that `render_chat` tokenises, for people: it does not tell a control token from its text in a message."""
        text, literal = self._render(messages)
        return literal.restore(text)

    def plan_answer(
        self, options: ChatOptions = PLAIN_CHAT, choice: ToolChoice = ANY_TOOL, asked: OutputFormat | None = None
    ) -> AnswerPlan:
        """The answer is content and nothing else."""
        return AnswerPlan(new_reader=PlainReader, format=asked)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""
        return self._tokenizer.piece(token)

    def spelling(self, token: int) -> bytes:
        """The same, and for a control token its text."""
        return self._tokenizer.piece(token) or self._tokenizer.control_text(token).encode()

    def _render(self, messages: Sequence[ChatMessage]) -> tuple[str, LiteralText]:
        """The template's output, with marks where messages hold control texts."""
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template: use /v1/completions, or a model that was tuned for conversations",
                code="chat_template_missing",
                param="messages",
            )
        literal = LiteralText(messages, self._tokenizer.control_texts)
        marked = [_as_variables(message, literal, self._developer) for message in messages]
        return self._template.render(marked, special_texts=self.special_texts), literal


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


def _as_variables(message: ChatMessage, literal: LiteralText, developer: str) -> dict[str, str]:
    if message.role not in ROLES:
        raise InvalidRequest(f"the role {message.role[:40]!r} is none of {', '.join(sorted(ROLES))}", param="messages")
    variables = {"role": developer if message.role == DEVELOPER else message.role, "content": literal.mark(message.content)}
    if message.name is not None:
        variables["name"] = literal.mark(message.name)
    return variables


def _special_texts(tokenizer: GgufTokenizer) -> dict[str, str]:
    vocabulary = tokenizer.vocabulary
    return {
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
        "unk_token": vocabulary.text(vocabulary.unknown),
        "pad_token": vocabulary.text(vocabulary.padding),
    }
