"""Which of some token sequences has the longest beginning in common with another one.

A tree over blocks of tokens: an edge is a block of a fixed number of tokens, found by a dictionary lookup, so a prompt of two thousand
tokens is some thirty lookups. Inside the first block that has no edge the tokens are compared one by one. Tokens are compared, not
digests of them: two prompts are never taken for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

Tokens = tuple[int, ...]


@attrs.define(eq=False)
class _Node:
    children: dict[Tokens, _Node] = attrs.Factory(dict)
    passing: dict[int, None] = attrs.Factory(dict)
    """Holders of which all blocks up to here are a part, the latest last."""
    tails: dict[int, Tokens] = attrs.Factory(dict)
    """Holders that end inside the next block, or here, with what is left of them."""


class BlockTree:
    """Holders are numbers, each with its tokens. Nothing blocks."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._root = _Node()

    def insert(self, holder: int, tokens: Tokens) -> list[int]:
        """Add a holder; returns those whose tokens are a beginning of these, which are of no use beside it."""
        node, covered = self._root, list[int]()
        for depth in range(0, len(tokens), self._block):
            block = tokens[depth : depth + self._block]
            covered += [other for other, tail in node.tails.items() if tail == block[: len(tail)]]
            if len(block) < self._block:
                break
            node = node.children.setdefault(block, _Node())
            node.passing[holder] = None
        else:
            covered += [other for other, tail in node.tails.items() if not tail]
        node.tails[holder] = tokens[len(tokens) // self._block * self._block :]
        return covered

    def remove(self, holder: int, tokens: Tokens) -> None:
        """Take a holder out that was inserted with these tokens."""
        path = [(self._root, tokens[:0])]
        for depth in range(0, len(tokens) // self._block * self._block, self._block):
            block = tokens[depth : depth + self._block]
            path.append((path[-1][0].children[block], block))
        del path[-1][0].tails[holder]
        for (parent, _), (node, block) in pairwise(path):
            del node.passing[holder]
            if not node.passing:
                del parent.children[block]  # everything below it is this holder's alone
                return

    def longest(self, tokens: Sequence[int]) -> tuple[int, int]:
        """A holder and how many tokens of its beginning are those of `tokens`; (-1, 0) where nobody shares the first one."""
        tokens = tuple(tokens)
        node, depth, holder = self._root, 0, -1
        while child := node.children.get(tokens[depth : depth + self._block]):
            node, depth = child, depth + self._block
            holder = next(reversed(node.passing))
        rest, more = tokens[depth : depth + self._block], 0
        for block, child in node.children.items():
            if (common := common_length(block, rest)) > more:
                more, holder = common, next(reversed(child.passing))
        for other, tail in node.tails.items():
            if (common := common_length(tail, rest)) > more:
                more, holder = common, other
        return holder, depth + more


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
