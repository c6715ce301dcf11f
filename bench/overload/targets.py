"""What the service has to reach under load."""

from __future__ import annotations

from tripower.bench.schema import Target

TIMES = 10.0
"""Requests that are sent, in terms of what can be served."""
NOISY_TIMES = 50.0
"""What the noisy key asks for, in terms of its share."""
NONE = Target("ours", "<=", 0)
THROUGHPUT = Target("ratio", ">=", 0.95)
REFUSAL_MS = Target("ours", "<=", 50.0)
FIRST_TOKEN = Target("ratio", "<=", 1.3)
CROWD = Target("ratio", ">=", 0.95)
EVENTS = Target("ratio", ">=", 5.0)
GROWTH_MB = Target("ours", "<=", 16.0)
"""A pool of pages grows to the most that was ever in use, which some later moment may exceed a little."""
