"""The tasks of the live screen: ask for figures, read keys, heed signals, draw. What they share is a `View`."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import trio

from tripower.api.cli.interrupts import Interrupted
from tripower.api.cli.top.keys import is_cut, keys
from tripower.api.cli.top.screen import Screen
from tripower.api.cli.top.terminal import Terminal
from tripower.api.cli.top.view import Act, Cancel, Follow, Quit, Redraw, Unfollow, View
from tripower.api.console.client import ConsoleRefused
from tripower.api.console.verbs import find_verb
from tripower.api.overview.figures import Overview

FRAME_SECONDS = 0.05
"""Between two drawings at least."""
SILENCE_SECONDS = 2.0
"""Without an answer, after which people are told."""
ESCAPE_SECONDS = 0.05
"""After an escape, for the rest of a key's sequence."""
NOTE_SECONDS = 6.0
KEYS_BYTES = 1024
SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, signal.SIGHUP)


class Server(Protocol):
    """What is asked: `ConsoleClient`, as far as it is used here. All raise `ConsoleRefused` and `ServerGone`."""

    async def call(self, verb: str, arguments: Sequence[str] = (), *, answer: Any = Any) -> Any:
        """The answer of a verb."""

    def stream(
        self, verb: str, arguments: Sequence[str] = (), *, answer: Any = Any
    ) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """The items of a verb that streams."""


class LiveScreen:
    """One server on one terminal."""

    def __init__(self, server: Server, terminal: Terminal, *, interval: float) -> None:
        """`interval`: seconds between two looks."""
        self.view = View()
        self._server = server
        self._terminal = terminal
        self._interval = interval
        self._changed = trio.Event()
        self._following: trio.CancelScope | None = None
        self._noted = ("", 0.0)
        self._asked_at: float | None = None

    async def run(self) -> None:
        """Until somebody leaves. Blocks. Raises `ServerGone`, in a group; the terminal is as before in any case."""
        with self._terminal:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._heed_signals)
                nursery.start_soon(self._read_keys)
                nursery.start_soon(self._draw)
                nursery.start_soon(self._look)

    # The server.

    async def _look(self) -> None:
        while True:
            began = self._asked_at = trio.current_time()
            overview = await self._server.call("overview", answer=Overview)
            self._asked_at = None
            self.view.show(overview)
            self._change()
            await trio.sleep_until(began + self._interval)

    async def _cancel(self, request: str) -> None:
        self._note(f"cancelling {request}")
        try:
            await self._server.call("cancel", (request,))
        except ConsoleRefused as error:
            self._note(error.message)
        else:
            self._note(f"{request} is cancelled")

    async def _follow(self, request: str) -> None:
        self._stop_following()
        with trio.CancelScope() as self._following:
            verb = await trio.to_thread.run_sync(find_verb, "trace")  # which may import a lot
            try:
                async with self._server.stream("trace", (request,), answer=verb.answer) as items:
                    async for item in items:
                        self.view.traced.append(verb.show(item))
                        self._change()
            except ConsoleRefused as error:
                self._note(error.message)
            self.view.traced_all = True
            self._change()

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel(reason="the trace was left")
            self._following = None

    # Keys and signals.

    async def _read_keys(self) -> None:
        keyboard = self._terminal.keyboard
        while True:
            await trio.lowlevel.wait_readable(keyboard)
            data = _read(keyboard)
            while is_cut(data):
                with trio.move_on_after(ESCAPE_SECONDS) as waiting:
                    await trio.lowlevel.wait_readable(keyboard)
                if waiting.cancelled_caught:
                    break
                data += _read(keyboard)
            for key in keys(data):
                self._do(self.view.press(key))
            self._change()

    def _do(self, act: Act | None) -> None:
        match act:
            case Quit():
                self._nursery.cancel_scope.cancel(reason="somebody left")
            case Redraw():
                self._terminal.renew()
            case Cancel():
                self._nursery.start_soon(self._cancel, act.request)
            case Follow():
                self._nursery.start_soon(self._follow, act.request)
            case Unfollow():
                self._stop_following()

    async def _heed_signals(self) -> None:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    raise Interrupted(number)
                if number == signal.SIGTSTP:
                    self._stop_following()
                    self.view.traced_all = True
                    await trio.sleep(FRAME_SECONDS)  # until the server knows: it would cut off who takes nothing
                    self._terminal.suspend()
                elif number == signal.SIGCONT:
                    self._terminal.renew()
                self._change()

    # The screen.

    def _note(self, text: str) -> None:
        self.view.note = text
        self._change()

    def _expire_note(self) -> None:
        """What has been said for long enough makes room for the keys."""
        now = trio.current_time()
        said, since = self._noted
        if self.view.note != said:
            self._noted = (self.view.note, now)
        elif said and now - since > NOTE_SECONDS:
            self.view.note = ""

    def _change(self) -> None:
        self._changed.set()

    async def _draw(self) -> None:
        while True:
            self._changed = trio.Event()
            asked_for = 0.0 if self._asked_at is None else trio.current_time() - self._asked_at
            self.view.silence = asked_for if asked_for > SILENCE_SECONDS else 0.0
            self._expire_note()
            self._terminal.draw(Screen(self.view))
            await trio.sleep(FRAME_SECONDS)
            with trio.move_on_after(1.0):  # a silence grows by itself
                await self._changed.wait()


def _read(keyboard: int) -> bytes:
    """What has been typed. A keyboard that has gone is a hang-up."""
    data = b""
    with suppress(OSError):
        data = os.read(keyboard, KEYS_BYTES)
    if not data:
        raise Interrupted(signal.SIGHUP)
    return data
