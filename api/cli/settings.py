"""The configuration that a command line stands for, and the logs that it wants."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from tripower.api.cli.log_writer import LogWriter
from tripower.runtime.configuration import Configuration, InvalidSettings, Violation, load_configuration

LEVELS = ("debug", "info", "warning", "error")
SPINS = "3000"
"""Some tens of microseconds: longer than the gap between two products of a step."""
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def read_configuration(arguments: argparse.Namespace, **options: object) -> Configuration:
    """File, environment and command line, checked once. `options` are by path with `__` for the dot, and win over `--set`.

    Blocks for one small file. Raises `InvalidSettings` with everything that is wrong; nothing has been opened by then.
    """
    flags: list[tuple[str, object]] = [*arguments.set]
    flags += [(name.replace("__", "."), value) for name, value in options.items()]
    file = Path(arguments.config).expanduser() if arguments.config else None
    return load_configuration(file=file, environment=os.environ, flags=flags)


def wait_without_spinning() -> None:
    """Let the engine's threads sleep soon when they wait for each other, unless the user has said how they shall wait.

    OpenMP reads this when torch is imported. By default its threads spin for milliseconds, and on a machine where anything else wants
    a core each of a step's hundreds of barriers then costs a time slice: SmolLM2 on two cores beside one busy program gave 0.8 tokens/s,
    and 12 with this; on the quiet machine both gave 34 to 38. For processes of ours only: an embedding program has its own mind.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPINS


class _OneLine(logging.Formatter):
    """No tracebacks: those are for `--debug`."""

    def formatException(self, ei: object) -> str:
        return ""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).rstrip()


def log_handler(normally: Literal["info", "silent"]) -> logging.Handler:
    """A service logs through a thread; a command that does one thing writes at once. Without a descriptor (a test) there is no thread."""
    if normally == "info":
        with suppress(OSError, ValueError, AttributeError):
            return LogWriter(sys.stderr.fileno())
    return logging.StreamHandler(sys.stderr)


def configure_logs(arguments: argparse.Namespace, *, normally: Literal["info", "silent"]) -> None:
    """Send our logs to standard error. `TRIPOWER_LOG` names a level; `--debug` shows everything, tracebacks too.

    `silent` is for commands that do one thing: what an actor logs reaches them as an error anyway, so only the store's warnings show.
    Raises `InvalidSettings` for a level that does not exist.
    """
    asked = "debug" if arguments.debug else os.environ.get("TRIPOWER_LOG", "").lower()
    if asked and asked not in LEVELS:
        raise InvalidSettings([Violation("TRIPOWER_LOG", f"one of {', '.join(LEVELS)}", repr(asked), "environment")])
    handler = log_handler(normally)
    handler.setFormatter(
        logging.Formatter(LINE) if asked == "debug" else _OneLine(LINE if asked or normally == "info" else "%(message)s")
    )
    ours = logging.getLogger("tripower")
    ours.handlers[:] = [handler]
    ours.propagate = False
    ours.setLevel(asked.upper() or ("INFO" if normally == "info" else logging.CRITICAL))
    logging.getLogger("tripower.runtime.store").setLevel(logging.NOTSET if asked or normally == "info" else logging.WARNING)


def flush_logs() -> None:
    """Wait until what was logged so far is written, for at most a second."""
    for handler in logging.getLogger("tripower").handlers:
        handler.flush()


def log_as_json(*, with_tracebacks: bool) -> None:
    """From now on a line of our logs is a JSON object."""
    from tripower.api.http.observe.json_log import JsonFormatter

    for handler in logging.getLogger("tripower").handlers:
        handler.setFormatter(JsonFormatter(with_tracebacks=with_tracebacks))
