"""`tripower bench disconnect`: every close is seen to free its seat, streaming and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tripower.bench.serving import disconnect

Run = Callable[..., dict[str, Any]]


def test_every_close_frees_a_seat(run_quick: Run) -> None:
    report = run_quick(disconnect.main, [])
    assert [cell["name"] for cell in report["cells"]] == [
        "streamed, seat, median",
        "streamed, seat, p99",
        "streamed, state, median",
        "streamed, state, p99",
        "not streamed, seat, median",
        "not streamed, seat, p99",
        "not streamed, state, median",
        "not streamed, state, p99",
    ]
    assert all(cell["ours"] >= 0 for cell in report["cells"])
