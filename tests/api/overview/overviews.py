"""Overviews for tests of what is shown."""

from __future__ import annotations

from typing import Any

import msgspec

from tripower.actors.request_paths import RequestPath
from tripower.api.overview.figures import DeviceOverview, IdentityOverview, ModelOverview, Overview, Percentiles, Point


def path(number: int, **changes: Any) -> RequestPath:
    """A request that is older the lower its number is."""
    plain = RequestPath(
        id=f"request-{number:02}",
        model="smollm2",
        label="key_1 (Ada)",
        place="answer",
        age=100.0 - number,
        waiting=0.25,
        prompt=0.5,
        answer=3.0,
        prompt_tokens=40,
        generated_tokens=10 * number,
        tokens_max=400,
        tokens_per_second=30.0 + number,
        deadline_left=2.0,
    )
    return msgspec.structs.replace(plain, **changes)


def overview(**changes: Any) -> Overview:
    """A busy server with ten requests."""
    plain = Overview(
        version="0.1.0",
        pid=4711,
        url="http://127.0.0.1:8420",
        status="ok",
        uptime_seconds=3725.0,
        window_seconds=60.0,
        rate_seconds=3.0,
        running=8,
        waiting=2,
        tokens_per_second=231.4,
        prompt_tokens_per_second=1234.0,
        requests_per_second=3.2,
        refused_per_second=0.0,
        models=(
            ModelOverview(
                name="smollm2",
                state="loaded",
                backend="picolm",
                members=8,
                members_max=16,
                waiting=2,
                tokens_per_second=231.4,
                first_token=Percentiles(0.0624, 0.081, 0.0904),
                token_interval=Percentiles(1.5, 1.75, 2.0),
                reused_share=0.45,
                acceptance=0.62,
            ),
        ),
        identities=(
            IdentityOverview(label="key_1 (Ada)", running=6, waiting=2, share=0.75),
            IdentityOverview(label="anonymous", running=2, waiting=0, share=0.25),
        ),
        devices=(DeviceOverview(name="cpu0", state="busy", job="steps smollm2", job_seconds=0.123, busy_share=0.98),),
        requests=tuple(path(number) for number in range(10)),
        history=tuple(Point(float(second - 60), 4.0 * second, 8, 2) for second in range(60)),
    )
    return msgspec.structs.replace(plain, **changes)
