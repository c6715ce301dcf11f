"""`load`, `unload`, `drain` and `set`: what changes the server, and what every one of them waits for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from tripower.api.console.text import duration
from tripower.api.console.verb import Subject, Verb
from tripower.api.console.words import model_names, no_words, one_word
from tripower.runtime.kernel.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

LOAD_SECONDS = 1800.0
"""For a load, or for an unload, which waits for whoever uses the model."""
OURS = "tripower"
LEVELS = ("debug", "info", "warning", "error")


class ModelDone(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded, or is not any more, and how long that took."""

    model: str
    state: str
    seconds: float
    already: bool = False
    """It was loaded before anybody asked here."""


async def load(subject: Subject, words: Sequence[str]) -> ModelDone:
    """Wait until a model can be used; it is loaded once, whoever else asks. Raises `NotFound`, `ModelRefused`, `Unavailable`."""
    name, began = one_word(words, "load MODEL"), trio.current_time()
    already = any(card.name == name and card.state == "loaded" for card in await subject.runtime.models())
    await subject.runtime.load(name)
    return ModelDone(model=name, state="loaded", seconds=trio.current_time() - began, already=already)


async def unload(subject: Subject, words: Sequence[str]) -> ModelDone:
    """Wait until a model's memory is free. It is unloaded whether anybody waits or not, and loaded again for whoever asks next."""
    name, began = one_word(words, "unload MODEL"), trio.current_time()
    await subject.runtime.unload(name)
    return ModelDone(model=name, state="unloaded", seconds=trio.current_time() - began)


def show_done(done: ModelDone) -> RenderableType:
    """A sentence."""
    from rich.text import Text

    if done.already:
        return Text(f"{done.model} is loaded already")
    memory = "; its memory is free" if done.state == "unloaded" else ""
    return Text(f"{done.model} is {done.state}, after {duration(done.seconds)}{memory}")


class Draining(msgspec.Struct, frozen=True):
    """The server takes nothing new; so many answers may go on."""

    active: int


async def drain(subject: Subject, words: Sequence[str]) -> Draining:
    """Begin to shut down, as the first SIGTERM does. Raises `Unavailable` where there is no server to shut down."""
    no_words(words, "drain")
    await trio.lowlevel.checkpoint()
    if subject.drain is None:
        raise Unavailable(
            "there is no server here to drain: the program that embeds the runtime ends it itself", code="no_server"
        )
    active = subject.runtime.active()
    subject.drain()
    return Draining(active)


def show_draining(draining: Draining) -> RenderableType:
    """A sentence."""
    from rich.text import Text

    answers = "1 answer goes on" if draining.active == 1 else f"{draining.active} answers go on"
    return Text(f"the server shuts down and takes nothing new; {answers if draining.active else 'nothing runs any more'}")


class LogLevel(msgspec.Struct, frozen=True):
    """How much a logger lets through."""

    logger: str
    level: str
    before: str = ""
    """What it was until now, where it has been changed."""


async def set_option(subject: Subject, words: Sequence[str]) -> list[LogLevel]:
    """`set log LEVEL [LOGGER]`; `set log` tells the levels. A logger that has no level of its own has that of the one above it.

    Raises `InvalidRequest` for a level that does not exist, and for a logger that is not ours.
    """
    await trio.lowlevel.checkpoint()
    if not words or words[0] != "log" or len(words) > 3:
        raise InvalidRequest(f"write set log {'|'.join(LEVELS)} [LOGGER]: there is nothing else to set")
    if len(words) == 1:
        return [LogLevel(name, _level(name)) for name in loggers()]
    level, name = words[1].lower(), _logger(words[2]) if len(words) > 2 else OURS
    if level not in LEVELS:
        raise InvalidRequest(f"{words[1][:100]!r} is no level: one of {', '.join(LEVELS)}", param="level")
    before = _level(name)
    logging.getLogger(name).setLevel(level.upper())
    return [LogLevel(name, level, before)]


def loggers() -> list[str]:
    """The names of ours that exist by now."""
    known = logging.root.manager.loggerDict
    return sorted({OURS} | {name for name, logger in known.items() if _is_ours(name) and isinstance(logger, logging.Logger)})


def _is_ours(name: str) -> bool:
    return name == OURS or name.startswith(f"{OURS}.")


def _logger(word: str) -> str:
    """With or without our name in front."""
    name = word if _is_ours(word) else f"{OURS}.{word}"
    if name not in loggers():
        raise InvalidRequest(f"there is no logger {word[:100]!r} of ours; known: {', '.join(loggers())}", param="logger")
    return name


def _level(name: str) -> str:
    return logging.getLevelName(logging.getLogger(name).getEffectiveLevel()).lower()


def show_levels(levels: list[LogLevel]) -> RenderableType:
    """A line for each."""
    from rich.text import Text

    return Text("\n".join(f"{each.logger}: {each.level}" + (f" (was {each.before})" if each.before else "") for each in levels))


VERBS = (
    Verb(
        name="load",
        summary="load a model; answered when it can be used",
        usage="MODEL",
        run=load,
        answer=ModelDone,
        show=show_done,
        complete=model_names,
        seconds=LOAD_SECONDS,
    ),
    Verb(
        name="unload",
        summary="unload a model when nobody uses it any more; answered when its memory is free",
        usage="MODEL",
        run=unload,
        answer=ModelDone,
        show=show_done,
        complete=model_names,
        seconds=LOAD_SECONDS,
    ),
    Verb(
        name="drain",
        summary="shut the server down as SIGTERM does: what runs goes on, nothing new is taken",
        run=drain,
        answer=Draining,
        show=show_draining,
    ),
    Verb(
        name="set",
        summary="how much is logged from now on, by all or by one logger; without a level, how much is now",
        usage="log [LEVEL [LOGGER]]",
        run=set_option,
        answer=list[LogLevel],
        show=show_levels,
        complete=lambda subject: ["log", *LEVELS, *loggers()],
    ),
)
