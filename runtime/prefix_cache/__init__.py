"""Evaluated beginnings of prompts, kept for whoever asks again: decisions without an engine."""

from tripower.runtime.prefix_cache.cache import Match, PrefixCache
from tripower.runtime.prefix_cache.namespace import check_key, namespace_of
from tripower.runtime.prefix_cache.page_ledger import PageLedger
from tripower.runtime.prefix_cache.settings import MISSES, PrefixSettings, PrefixStatistics

__all__ = [
    "MISSES",
    "Match",
    "PageLedger",
    "PrefixCache",
    "PrefixSettings",
    "PrefixStatistics",
    "check_key",
    "namespace_of",
]
