"""What an answer has to look like, and what keeps it so.

An `OutputFormat` is what somebody asked for, as plain data. A `Constraint` is its automaton for one sequence: it says which tokens may
come next, and is told which one came. It is made off the lane, and belongs to the lane from the sequence's first step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

TokenMask: TypeAlias = NDArray[np.uint32]
"""uint32 [ceil(vocabulary / 32)]: bit `t % 32` of word `t // 32` is set where token `t` may come next."""


class JsonObjectFormat(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that a schema accepts."""

    schema: Any


class RegexFormat(msgspec.Struct, frozen=True, tag="regex"):
    """Text that a regular expression matches as a whole."""

    pattern: str


class ChoiceFormat(msgspec.Struct, frozen=True, tag="choice"):
    """One of some texts."""

    choices: tuple[str, ...]


class LarkFormat(msgspec.Struct, frozen=True, tag="lark"):
    """Text of a context-free grammar, in llguidance's dialect of Lark."""

    grammar: str


class GbnfFormat(msgspec.Struct, frozen=True, tag="gbnf"):
    """Text of a context-free grammar, in llama.cpp's notation."""

    grammar: str


OutputFormat: TypeAlias = JsonObjectFormat | JsonSchemaFormat | RegexFormat | ChoiceFormat | LarkFormat | GbnfFormat


class Constraint(Protocol):
    """The automaton of one sequence. Synchronous; used by one thread at a time."""

    def mask(self) -> TokenMask:
        """What may come next. The array stays as it is until `accept`; end tokens are in it where the text may end."""

    def accept(self, token: int) -> None:
        """The next token. An end token, or one that `mask` did not allow, changes nothing any more."""

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """How many of these may come next, one after the other. Changes nothing. For guesses: fewer than it might be is no fault."""

    def take_back(self, count: int) -> None:
        """The last `count` tokens that `accept` was told of have not come after all."""


@runtime_checkable
class ExplainedConstraint(Constraint, Protocol):
    """One that says why it allows nothing. Both may be read from any thread."""

    param: str | None
    """The field of the request that asked for the format."""
    exhausted: str
    """Why the last mask allows nothing; empty if it allows something."""
