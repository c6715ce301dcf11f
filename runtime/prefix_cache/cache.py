"""Which evaluated states are kept for whom, and which go first.

Everything here decides and nothing acts: the engine keeps the states, under the sequence ids that are named here. An entry is a
sequence that nobody continues; whoever asks for a prompt with the same beginning forks it, so an entry serves any number of requests.

What goes first: an entry that was idle for too long; then, where memory is short, the least recently used entry of the identity that
holds most. So nobody can evict what others hold below their share. Entries of one identity never share pages with another's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import attrs

from tripower.runtime.prefix_cache.block_tree import BlockTree, Tokens
from tripower.runtime.prefix_cache.page_ledger import PageLedger
from tripower.runtime.prefix_cache.settings import MISSES, PrefixSettings, PrefixStatistics


@attrs.define(eq=False)
class Entry:
    """A state that can be forked."""

    sequence: int
    namespace: str
    identity: str
    tokens: Tokens
    pages: tuple[int, ...]
    used_at: float


@attrs.frozen
class Match:
    """The longest beginning that was found, or why there is none. `length` 0: a miss."""

    length: int
    sequence: int = -1
    reason: str = ""


class PrefixCache:
    """See the module. All methods are synchronous and quick."""

    def __init__(self, settings: PrefixSettings, ledger: PageLedger, *, pages_max: int, page_bytes: int) -> None:
        """`pages_max` is what the engine has for all states."""
        self._settings, self._ledger = settings, ledger
        self._page_bytes, self._pool_pages = page_bytes, pages_max
        asked = settings.bytes_max // page_bytes if settings.bytes_max and page_bytes else pages_max // 2
        self.pages_max = min(asked, pages_max)
        self._entries: dict[int, Entry] = {}
        """The least recently used first."""
        self._trees: dict[str, BlockTree] = {}
        self._sizes: Counter[str] = Counter()
        """Entries by namespace."""
        self._gone: dict[str, str] = {}
        """Why a namespace without entries has none: as many as entries are kept."""
        self._readers: Counter[int] = Counter()
        """Entries by page."""
        self._pages_of: defaultdict[str, int] = defaultdict(int)
        """By identity."""
        self._misses: Counter[str] = Counter()
        self._hits = self._reused = self._evaluated = 0
        self._evicted_ttl = self._evicted_capacity = self._replaced = 0

    def sequences(self) -> list[int]:
        """The states that must stay."""
        return list(self._entries)

    def find(self, namespace: str, prompt: Sequence[int], now: float) -> Match:
        """The entry with the longest common beginning; the last token of a prompt is always left to evaluate."""
        tree = self._trees.get(namespace)
        if tree is None:
            return Match(0, reason=self._gone.get(namespace, "cold"))
        sequence, length = tree.longest(prompt[:-1])
        if not length:
            return Match(0, reason="no_common_prefix")
        self._touch(self._entries[sequence], now)
        return Match(length, sequence)

    def keep(self, sequence: int, namespace: str, identity: str, tokens: Sequence[int], now: float) -> int:
        """Make an entry of a sequence of which all these tokens are evaluated.

        Returns the positions that are to stay, fewer where not all of them fit; 0 where another entry holds as much already, or nothing
        can be kept: then the sequence is nobody's.
        """
        length = min(len(tokens), self.pages_max * self._ledger.page_positions)
        kept = tuple(tokens[:length])
        tree = self._trees.get(namespace)
        if tree is not None:
            other, common = tree.longest(kept)
            if common == length:
                if other >= 0:
                    self._touch(self._entries[other], now)
                return 0
        if not length:
            return 0
        self._ledger.resize(sequence, length)
        self._insert(Entry(sequence, namespace, identity, kept, self._ledger.pages(sequence), now))
        while len(self._entries) > self._settings.entries_max or len(self._readers) > self.pages_max:
            self._evict()
        return length if sequence in self._entries else 0

    def make_room(self, pages: int) -> None:
        """Evict until the engine has so many pages free, or no entry is left. Pages that somebody who runs shares stay in use."""
        while self._entries and self._ledger.used + pages > self._pool_pages:
            self._evict()

    def expire(self, now: float) -> bool:
        """Drop what has been idle for too long; whether there was any."""
        ttl = self._settings.ttl_seconds
        late = [entry for entry in self._entries.values() if entry.used_at + ttl <= now]  # the sum that `expires_at` told
        for entry in late:
            self._remove(entry, "expired")
        self._evicted_ttl += len(late)
        return bool(late)

    @property
    def expires_at(self) -> float | None:
        """When the next entry is due."""
        oldest = next(iter(self._entries.values()), None)
        return None if oldest is None else oldest.used_at + self._settings.ttl_seconds

    def forget(self) -> None:
        """Nobody knows any more what the device holds: no entry is left."""
        for entry in list(self._entries.values()):
            self._remove(entry, "rollback_unprovable")

    def count(self, *, reused: int, evaluated: int, reason: str) -> None:
        """A prompt has been evaluated."""
        self._reused += reused
        self._evaluated += evaluated
        if reused:
            self._hits += 1
        else:
            self._misses[reason] += 1

    def pages_of(self, identity: str) -> int:
        """Pages of all entries of an identity, each once."""
        return self._pages_of[identity]

    def statistics(self) -> PrefixStatistics:
        misses = tuple((reason, self._misses[reason]) for reason in MISSES)
        return PrefixStatistics(
            requests=self._hits + self._misses.total(),
            hits=self._hits,
            misses=misses,
            reused_tokens=self._reused,
            evaluated_tokens=self._evaluated,
            evicted_ttl=self._evicted_ttl,
            evicted_capacity=self._evicted_capacity,
            replaced=self._replaced,
            entries=len(self._entries),
            bytes=len(self._readers) * self._page_bytes,
            bytes_max=self.pages_max * self._page_bytes,
        )

    def _touch(self, entry: Entry, now: float) -> None:
        entry.used_at = now
        self._entries[entry.sequence] = self._entries.pop(entry.sequence)

    def _insert(self, entry: Entry) -> None:
        tree = self._trees.get(entry.namespace)
        if tree is None:
            tree = self._trees[entry.namespace] = BlockTree(self._ledger.page_positions)
        covered = tree.insert(entry.sequence, entry.tokens)
        self._entries[entry.sequence] = entry
        self._sizes[entry.namespace] += 1
        for page in entry.pages:
            self._pages_of[entry.identity] += not self._readers[page]
            self._readers[page] += 1
        for other in covered:
            self._replaced += 1
            self._remove(self._entries[other], "evicted")

    def _evict(self) -> None:
        """The least recently used entry of whoever holds most goes."""
        holders = {entry.identity for entry in self._entries.values()}
        largest = max(holders, key=lambda identity: (self._pages_of[identity], identity))
        self._evicted_capacity += 1
        self._remove(next(entry for entry in self._entries.values() if entry.identity == largest), "evicted")

    def _remove(self, entry: Entry, reason: str) -> None:
        del self._entries[entry.sequence]
        self._trees[entry.namespace].remove(entry.sequence, entry.tokens)
        self._sizes[entry.namespace] -= 1
        if not self._sizes[entry.namespace]:
            del self._sizes[entry.namespace], self._trees[entry.namespace]
            self._remember(entry.namespace, reason)
        for page in entry.pages:
            self._readers[page] -= 1
            if not self._readers[page]:
                del self._readers[page]
                self._pages_of[entry.identity] -= 1
        if not self._pages_of[entry.identity]:
            del self._pages_of[entry.identity]
        self._ledger.close(entry.sequence)

    def _remember(self, namespace: str, reason: str) -> None:
        self._gone.pop(namespace, None)
        self._gone[namespace] = reason
        while len(self._gone) > self._settings.entries_max:
            del self._gone[next(iter(self._gone))]
