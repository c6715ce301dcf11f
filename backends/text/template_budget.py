"""What one rendering of a chat template may use.

A template is a program out of the model file. The sandbox keeps it away from the interpreter; the budget keeps it from using all
memory or never ending. Loops, copies of text and lists, nesting, time and output are counted, and a value that would be too large
is refused before it is made.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sized, ValuesView
from contextvars import ContextVar
from types import NoneType

from jinja2 import Undefined

TEMPLATE_CHARACTERS_MAX = 256 * 1024
ITERATIONS_MAX = 200_000
RANGE_MAX = 100_000
OUTPUT_CHARACTERS_MAX = 4 * 2**20
COPIED_MAX = 64 * 2**20
"""Characters that all operations together may make, an item of a list counting as `ITEM_WEIGHT` of them."""
ITEM_WEIGHT = 64
DEPTH_MAX = 64
RENDER_SECONDS_MAX = 10.0
"""A last resort: everything above is counted, this is measured."""

_SCALARS = (bool, int, float, NoneType, Undefined, range)
_SEQUENCES = (list, tuple, KeysView, ValuesView, ItemsView)


class BudgetExceeded(Exception):
    """The template wanted more than it may use; the message says of what."""


class Budget:
    """Counters of one rendering, found by the sandbox through `current`."""

    def __init__(self) -> None:
        self._iterations = ITERATIONS_MAX
        self._copied = COPIED_MAX
        self._depth = 0
        self._end = time.monotonic() + RENDER_SECONDS_MAX

    def iterate(self) -> None:
        self._iterations -= 1
        if self._iterations < 0:
            raise BudgetExceeded(f"more than {ITERATIONS_MAX} loop iterations")
        if time.monotonic() > self._end:
            raise BudgetExceeded(f"more than {RENDER_SECONDS_MAX:g} seconds")

    def reserve(self, count: int) -> None:
        """Account for characters or items that are about to be made."""
        self._copied -= count
        if self._copied < 0:
            raise BudgetExceeded(f"more than {COPIED_MAX} characters copied")

    def enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BudgetExceeded(f"calls nested deeper than {DEPTH_MAX}")

    def leave(self) -> None:
        self._depth -= 1


current: ContextVar[Budget] = ContextVar("current_template_budget")


class Counted:
    """What a loop iterates over: the same items, each of them counted."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[object]:
        budget = current.get()
        for item in self._items:
            budget.iterate()
            yield item


class CountedSized(Counted):
    """The same where the length is known, which `loop.length` asks for."""

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


def counted(items: Iterable[object]) -> Counted:
    return CountedSized(items) if isinstance(items, Sized) else Counted(items)


def admit(value: object) -> object:
    """Account for a value that was made: a string by its characters, a container by all items below it.

    Containers may share members, so a list made in forty steps can stand for 2**40 items; counting what it stands for keeps every
    later comparison, conversion or sort within bounds.
    """
    if isinstance(value, str):
        current.get().reserve(len(value))
    elif isinstance(value, (dict, *_SEQUENCES)):
        current.get().reserve(ITEM_WEIGHT * tree_size(value, COPIED_MAX // ITEM_WEIGHT, strings=False))
    return value


def text_of(value: object) -> str:
    """`str(value)`, refused beforehand where it would be longer than an output may be."""
    if isinstance(value, str):
        return value
    if not isinstance(value, _SCALARS):
        current.get().reserve(tree_size(value, OUTPUT_CHARACTERS_MAX, strings=True))
    return str(value)


def tree_size(value: object, limit: int, *, strings: bool) -> int:
    """Items below a container, shared ones counted each time; with `strings` their characters too. Stops above the limit."""
    size = 0
    waiting: list[object] = [value]
    while waiting:
        item = waiting.pop()
        size += 1
        if isinstance(item, str):
            size += len(item) if strings else 0
        elif isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, _SEQUENCES):
            waiting += list(item)
        elif strings and not isinstance(item, _SCALARS):
            raise TypeError(f"a value of the type {type(item).__name__} cannot be written")
        if size + len(waiting) > limit:
            raise BudgetExceeded(f"a value of more than {limit} parts")
    return size
