"""From what went wrong to one line for people and an exit code for programs."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from tripower.api.cli import exit_codes
from tripower.runtime.kernel.errors import InvalidConfiguration, TripowerError, Unavailable

CURES = {
    "chat_template_missing": "this model has no chat template: continue plain text with `tripower run MODEL --raw PROMPT`",
}
"""Where the message of an error speaks of HTTP, what to do on the command line."""
UNREACHED = frozenset({"cannot_attach", "no_answer", "server_gone"})
"""Codes of a console that cannot be attached to, or that has ended."""
KEY_VARIABLE = "TRIPOWER_API_KEY"
UNAUTHORISED = 401


class ServerRefused(TripowerError):
    """The server at `--url` answered with an error."""


class CannotConnect(Unavailable):
    """The server at `--url` cannot be reached."""

    code = "cannot_connect"


class StreamCut(Unavailable):
    """The server ended a stream in the middle."""

    code = "stream_cut"


def describe(causes: Sequence[BaseException]) -> tuple[str, int]:
    """What to print after `tripower: `, and the exit code."""
    ours = [cause for cause in causes if isinstance(cause, TripowerError)]
    if not ours:
        cause = causes[0]
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{cause.strerror}: {cause.filename or 'what was written is not complete'}", exit_codes.REFUSED
        return (
            f"{type(cause).__name__}: {cause} (this is a fault in tripower; run again with --debug for the details)",
            exit_codes.REFUSED,
        )
    error = ours[0]
    if isinstance(error, InvalidConfiguration) and error.code == InvalidConfiguration.code:
        lines = error.message.splitlines()
        if len(lines) == 1:
            return error.message, exit_codes.USAGE
        return "\n  ".join(["these settings cannot be used:", *lines]), exit_codes.USAGE
    if isinstance(error, CannotConnect) or error.code in UNREACHED:
        return error.message, exit_codes.NO_CONNECTION
    if isinstance(error, ServerRefused):
        return refused(error), exit_codes.REFUSED
    return CURES.get(error.code, error.message), exit_codes.REFUSED


def refused(error: ServerRefused) -> str:
    """What a server said, and for want of a key where to put one."""
    said = f"{error.status} {error.code}: {error.message}" if error.message else f"{error.status}"
    if error.status != UNAUTHORISED:
        return said
    if os.environ.get(KEY_VARIABLE):
        return f"{said}; the key in {KEY_VARIABLE} is not one of the server's: set it to one that is"
    return f"{said}; set {KEY_VARIABLE} to your key, which is then sent"
