"""What is told of one request when it is over, to whoever keeps records.

Redaction is by construction: a record has these fields and no others, and nothing of a prompt, an answer, a key or a path of this machine
is among them.
"""

from __future__ import annotations

import msgspec


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Times are seconds; `wait`, `prefill` and `decode` are of the model's queue, where an answer was complete."""

    at: float
    """When it arrived: seconds since 1970."""
    request_id: str
    identity: str = ""
    """Who asked, and the name of the key where it has one; empty without a key."""
    method: str
    route: str
    """The template of the route."""
    action: str = ""
    """The route's name."""
    status: int
    end: str = ""
    """`stop`, `length`, an error's code, `disconnect` or `shutdown`."""
    model: str = ""
    seconds: float
    wait_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """`success`, `failure` or `cancelled`."""
        if self.end in ("disconnect", "shutdown", "cancelled"):
            return "cancelled"
        return "success" if self.status < 400 and self.end in COMPLETE else "failure"


COMPLETE = frozenset({"", "stop", "length", "tool_calls"})
"""Ends of requests that have all they asked for."""


def line(record: RequestRecord) -> str:
    """One request on one line, for people."""
    who = f", {record.identity}" if record.identity else ""
    end = f", {record.end}" if record.end else ""
    ignored = f", ignored {', '.join(record.ignored[:20])}" if record.ignored else ""
    return (
        f"{record.method} {record.route} {record.status} {1000 * record.seconds:.1f} ms, "
        f"{record.prompt_tokens}+{record.completion_tokens} tokens, id {record.request_id}{who}{end}{ignored}"
    )
