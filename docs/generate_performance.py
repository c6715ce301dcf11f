"""Put the figures of `bench/results/` into `performance.md`: `python docs/generate_performance.py`, or `--check` to see whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from tripower.bench.tables import updated_page

PAGE = Path(__file__).with_name("performance.md")
RESULTS = Path(__file__).parents[1] / "bench" / "results"


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = updated_page(old, RESULTS)
    if "--check" in sys.argv[1:]:
        if old != new:
            print("docs/performance.md is not current; run `python docs/generate_performance.py`")
            return 1
        return 0
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
