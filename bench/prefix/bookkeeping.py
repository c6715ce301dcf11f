"""What reuse costs a request that finds nothing: the decisions alone, by processor time, without an engine.

On a machine whose speed drifts by more than a hundredth no pair of runs shows a hundredth. So the work that a miss adds is done by
itself, many times, in a cache as full as it gets, and is set beside the time that evaluating such a prompt takes.
"""

from __future__ import annotations

import random
import time

from tripower.runtime.prefix_cache import PageLedger, PrefixCache, PrefixSettings

PAGE_POSITIONS = 64
ENTRIES = 256
VOCABULARY = 49_152


def miss_seconds(tokens: int, repeats: int) -> float:
    """Processor seconds of one miss: nothing is found, and at the end the state is kept and another one makes room."""
    rng = random.Random(7)
    pages = -(-tokens // PAGE_POSITIONS)
    ledger = PageLedger(PAGE_POSITIONS)
    cache = PrefixCache(PrefixSettings(entries_max=ENTRIES), ledger, pages_max=4 * pages * ENTRIES, page_bytes=1)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(ENTRIES + repeats)]
    taken = 0.0
    for sequence, prompt in enumerate(prompts):
        began = time.thread_time()
        cache.find("namespace", prompt, sequence)
        ledger.resize(sequence, tokens)
        cache.make_room(ledger.more(sequence, tokens + PAGE_POSITIONS))
        cache.keep(sequence, "namespace", "somebody", prompt, sequence)
        if sequence >= ENTRIES:
            taken += time.thread_time() - began
    return taken / repeats
