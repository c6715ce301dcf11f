"""Somebody else on this machine: a process that keeps a core busy for a share of the time.

    python -m tripower.bench.engine.competitor SHARE

It takes the share of its own processor time in every 10 ms, as far as it gets it; at 1 it never pauses.
"""

from __future__ import annotations

import sys
import time

PERIOD_SECONDS = 0.01


def main() -> None:
    share = float(sys.argv[1])
    due = time.monotonic()
    while True:
        until = time.process_time() + share * PERIOD_SECONDS
        while time.process_time() < until:
            continue
        due = max(due + PERIOD_SECONDS, time.monotonic() - PERIOD_SECONDS)
        if share < 1:
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
