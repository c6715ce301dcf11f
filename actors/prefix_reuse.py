"""What a model's queue does about evaluated beginnings: where a member may start, what of it stays, what a job is told.

The cache decides (`runtime.prefix_cache`); the queue calls this at a member's beginning and end and before each job. A state stays open
in the engine under the sequence id of the member that evaluated it. Where a job failed, nobody knows what the device still holds, so
everything kept is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tripower.actors.queued_generation import QueuedGeneration
from tripower.runtime.batching import Batch, Member
from tripower.runtime.engine import EngineInfo
from tripower.runtime.engine.logprobs import NO_LOGPROBS
from tripower.runtime.prefix_cache import PageLedger, PrefixCache, PrefixSettings, PrefixStatistics
from tripower.runtime.prefix_cache.block_tree import common_length

SPARE_POSITIONS = 64
"""What an engine may reserve in one job beyond what a member can draw: room for guesses."""

Seated = Member[QueuedGeneration]


class PrefixReuse:
    """Does nothing, and costs nothing, without settings or with an engine that does not share pages. Synchronous."""

    def __init__(self, info: EngineInfo, settings: PrefixSettings | None) -> None:
        self._context = info.context_max
        self._ledger = PageLedger(max(info.page_positions, 1))
        self._cache: PrefixCache | None = None
        self._retaining: dict[int, int] = {}
        """Positions to keep of sequences that the device has not been told of."""
        if settings is not None and info.page_positions:
            page_bytes = info.page_positions * info.state_bytes_per_token
            self._cache = PrefixCache(settings, self._ledger, pages_max=info.pages_max, page_bytes=page_bytes)

    def begin(self, batch: Batch[QueuedGeneration], member: Seated, now: float) -> None:
        """A member has joined: it starts from what is kept of its prompt, unless each of the prompt's rows has to be told of.

        Where somebody in the batch evaluates more of the same beginning, as the first of several answers to one request does, it is held
        until that is there.
        """
        if self._cache is None or not takes_part(member):
            return
        match = self._cache.find(member.owner.request.namespace, member.prompt, now)
        member.owner.missed = match.reason
        leader, common = self._leader(batch, member)
        if leader is not None and common >= match.length + self._ledger.page_positions:
            member.held, member.owner.leader, member.owner.wanted = True, leader, common
        elif match.length:
            self._start_from(batch, member, match.sequence, match.length)

    def release(self, batch: Batch[QueuedGeneration], now: float) -> bool:
        """Let members go on that have waited for another one's prompt; whether there was any. Also when that one is gone."""
        if self._cache is None:
            return False
        released = False
        for member in batch.members:
            leader = member.owner.leader
            if not member.held or leader is None:
                continue
            if leader.finished or leader.leaving:
                member.held, member.owner.leader = False, None
                self.begin(batch, member, now)
                released |= not member.held
            elif leader.evaluated >= member.owner.wanted:
                member.held, member.owner.leader = False, None
                self._ledger.resize(leader.sequence, leader.evaluated)
                self._start_from(batch, member, leader.sequence, member.owner.wanted)
                released = True
        return released

    def _leader(self, batch: Batch[QueuedGeneration], member: Seated) -> tuple[Seated | None, int]:
        """Who in the batch has the longest common beginning with a member in the same namespace, and how long it is."""
        found: Seated | None = None
        longest, namespace, prompt = 0, member.owner.request.namespace, member.prompt[:-1]
        for other in batch.members:
            if other is not member and not other.held and other.owner.request.namespace == namespace:
                common = common_length(other.prompt, prompt)
                if common > longest:
                    found, longest = other, common
        return found, longest

    def _start_from(self, batch: Batch[QueuedGeneration], member: Seated, source: int, length: int) -> None:
        self._ledger.fork(source, member.sequence, length)
        batch.reuse(member, source, length)

    def count(self, member: Seated) -> None:
        """A member's prompt is evaluated."""
        if self._cache is not None and takes_part(member):
            reused, reason = member.reused, member.owner.missed
            self._cache.count(reused=reused, evaluated=len(member.prompt) - reused, reason=reason)

    def end(self, member: Seated, now: float, *, failed: bool = False) -> None:
        """A member is out of the batch. What it has evaluated stays, unless it failed, asked for no reuse, or never began."""
        if self._cache is None:
            return
        member.owner.leader = None
        request, length = member.owner.request, 0
        if request.namespace and not failed and member.source is None:
            tokens = [*member.prompt, *member.output][: member.evaluated]
            length = self._cache.keep(member.sequence, request.namespace, request.caller.identity, tokens, now)
        if length:
            self._retaining[member.sequence] = length
        else:
            self._ledger.close(member.sequence)

    def prepare(
        self, members: Sequence[Seated], *, steps: int, sources: Collection[int]
    ) -> tuple[list[int], tuple[tuple[int, int], ...]]:
        """Make room for what these members, but for those that are held, may need in a job of so many steps.

        Returns the sequences that the device must keep for later, and the positions to keep of those that are new to it, `sources` of
        forks among them.
        """
        if self._cache is None:
            return [], ()
        present = [member for member in members if not member.held]
        for member in present:
            self._ledger.resize(member.sequence, member.evaluated)
        self._cache.make_room(sum(self._ledger.more(member.sequence, self._reach(member, steps)) for member in present))
        kept = self._cache.sequences()
        wanted = {*kept, *sources}
        retaining = tuple((sequence, length) for sequence, length in self._retaining.items() if sequence in wanted)
        self._retaining.clear()
        return kept, retaining

    def forget(self, batch: Batch[QueuedGeneration]) -> None:
        """A job failed: nothing is kept, and members that were to start from it start anew."""
        if self._cache is None:
            return
        self._cache.forget()
        self._retaining.clear()
        for member in batch.members:
            member.held, member.owner.leader = False, None
            if member.source is not None:
                batch.begin_anew(member)
                self._ledger.close(member.sequence)
                member.owner.missed = "rollback_unprovable"

    def expire(self, now: float) -> bool:
        """Drop what has been idle for too long; whether there was any."""
        return self._cache is not None and self._cache.expire(now)

    @property
    def expires_at(self) -> float | None:
        """When something is to be dropped; None while nothing is kept."""
        return None if self._cache is None else self._cache.expires_at

    def statistics(self) -> PrefixStatistics | None:
        """None where nothing is ever kept."""
        return None if self._cache is None else self._cache.statistics()

    def _reach(self, member: Seated, steps: int) -> int:
        """Positions that a member may have at the end of a job."""
        known = len(member.prompt) + len(member.output)
        steps += 0 if member.drafter is None else steps  # as many guesses may be right as there are steps, and a few more
        drawn = min(max(member.max_tokens - len(member.output) - 1, 0), steps)
        return min(known + drawn + SPARE_POSITIONS, self._context)


def takes_part(member: Seated) -> bool:
    """Whether a member may start from what is kept."""
    return bool(member.owner.request.namespace) and member.prompt_logprobs == NO_LOGPROBS
