"""What `tripower top`, the web page's status view and `tripower top --json` show. Made by `collector.py`; all times are seconds."""

from __future__ import annotations

import msgspec

from tripower.actors.request_paths import RequestPath


class Percentiles(msgspec.Struct, frozen=True):
    """Of answers that were completed lately and of those that run; None where there are none."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class ModelOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Figures are 0 while it is not loaded."""

    name: str
    state: str
    backend: str = ""
    members: int = 0
    members_max: int = 0
    waiting: int = 0
    tokens_per_second: float = 0.0
    prompt_tokens_per_second: float = 0.0
    first_token: Percentiles = Percentiles()
    token_interval: Percentiles = Percentiles()
    reused_share: float = 0.0
    """Of the prompts' tokens lately, those that did not have to be evaluated."""
    acceptance: float = 0.0
    """Of guessed tokens lately, those that were right."""
    tokens_per_pass: float = 0.0
    state_share: float = 0.0
    """Of the positions that all seats may have, those in use."""


class IdentityOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One key, by its label; requests without a key are `anonymous`."""

    label: str
    running: int
    waiting: int
    share: float
    """Of the tokens generated lately."""


class DeviceOverview(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    job: str = ""
    """What it computes at this moment; empty when idle."""
    job_seconds: float = 0.0
    busy_share: float = 0.0
    """Of the time lately."""


class Point(msgspec.Struct, frozen=True, gc=False):
    """One sample of the plots."""

    at: float
    """Seconds before now, negative."""
    tokens_per_second: float
    running: int
    waiting: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A whole server at one moment. "Lately" is the last `window_seconds`; what is said per second is of the last `rate_seconds`."""

    version: str
    pid: int
    url: str = ""
    status: str
    reasons: tuple[str, ...] = ()
    uptime_seconds: float
    window_seconds: float
    rate_seconds: float = 0.0
    running: int
    waiting: int
    tokens_per_second: float
    prompt_tokens_per_second: float
    requests_per_second: float
    """That models were asked."""
    refused_per_second: float
    """Of them, and of those that came to no model, the ones that the server had no room for or that were over a limit."""
    models: tuple[ModelOverview, ...] = ()
    identities: tuple[IdentityOverview, ...] = ()
    """Who had tokens lately, waits or runs: at most twenty, the busiest first."""
    devices: tuple[DeviceOverview, ...] = ()
    requests: tuple[RequestPath, ...] = ()
    """The ten slowest that run or wait, the oldest first."""
    history: tuple[Point, ...] = ()
    """The last two minutes, a sample a second, the oldest first."""
