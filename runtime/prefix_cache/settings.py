"""How much may be kept for reuse, and what has become of it."""

from __future__ import annotations

import attrs
import msgspec

MISSES = ("cold", "expired", "evicted", "no_common_prefix", "rollback_unprovable")
"""Why nothing was found: the namespace is new, its states were idle for too long, made room, begin otherwise, or a device failed."""


@attrs.frozen(kw_only=True)
class PrefixSettings:
    """States of all identities together, in one loaded model. Off is to have none of these."""

    bytes_max: int = 0
    """0: half of the memory that the engine has for states. It is part of that memory, and yields to whoever runs."""
    entries_max: int = 256
    ttl_seconds: float = 300.0
    """Since the last use."""


class PrefixStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` = `hits` + the sum of `misses`; requests that asked for no reuse are not among them."""

    requests: int = 0
    hits: int = 0
    misses: tuple[tuple[str, int], ...] = ()
    reused_tokens: int = 0
    evaluated_tokens: int = 0
    """Of prompts, by requests that might have reused some."""
    evicted_ttl: int = 0
    evicted_capacity: int = 0
    replaced: int = 0
    """States that a longer one with the same beginning made useless."""
    entries: int = 0
    bytes: int = 0
    bytes_max: int = 0
