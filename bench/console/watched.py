"""A `tripower serve` in a child process, with a console attached."""

from __future__ import annotations

import ast
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from tripower.api.console.client import ConsoleClient, open_console
from tripower.api.console.repl.answer import LineAnswer
from tripower.api.console.verbs import find_verb
from tripower.bench.children import Server, module_command, running_server
from tripower.runtime.kernel import Unavailable

MILLI = 1e3
_HOLDS = "from tripower.bench.console.holds import HOLDS; "


@attrs.frozen
class Watched:
    """The server and the way in."""

    server: Server
    socket: Path
    model: str
    """By the name that it has in requests."""

    async def ask_once(self, verb: str) -> tuple[float, Any]:
        """Attach, ask, leave: milliseconds from the first byte to the decoded answer, and the answer. Blocks."""
        began = time.perf_counter()
        async with self.attached() as console:
            answer = await console.call(verb, answer=find_verb(verb).answer)
            return (time.perf_counter() - began) * MILLI, answer

    def attached(self) -> AbstractAsyncContextManager[ConsoleClient]:
        """A console on it. Blocks until it is greeted."""
        return open_console(str(self.socket))


async def timed_call(console: ConsoleClient, verb: str, *arguments: str) -> tuple[float, Any]:
    """Milliseconds until the answer is decoded, and the answer. Blocks."""
    began = time.perf_counter()
    answer = await console.call(verb, arguments, answer=find_verb(verb).answer)
    return (time.perf_counter() - began) * MILLI, answer


async def install_holds(console: ConsoleClient) -> None:
    """Measure from now on how long the console's tasks hold the server's loop."""
    await _python(console, f"{_HOLDS}HOLDS.install()")


async def longest_holds(console: ConsoleClient) -> tuple[float, float]:
    """Milliseconds since the last time: the longest step of the console's tasks, and of any other."""
    ours, others = ast.literal_eval(await _python(console, f"{_HOLDS}HOLDS.take()"))
    return ours * MILLI, others * MILLI


async def forget_places(console: ConsoleClient) -> None:
    """As if nobody had looked at the tree before."""
    await _python(console, "from tripower.runtime.introspection.task_tree import PLACES; PLACES.last.clear()")


async def _python(console: ConsoleClient, line: str) -> str:
    answer = await console.call("py", [line], answer=LineAnswer)
    if answer.error:
        raise Unavailable(f"the server's console answered: {answer.error}")
    return str(answer.value)


@asynccontextmanager
async def watched_server(model: str, *settings: str) -> AsyncIterator[Watched]:
    """Serve a model for the length of the block, with `SECTION.KEY=VALUE` settings. Blocks while it loads. Raises `Unavailable`."""
    with tempfile.TemporaryDirectory(prefix="tripower-bench-") as folder:
        socket = Path(folder) / "console.sock"
        async with running_server(
            serve_command(model, f"console.socket={socket}", *settings), name="tripower serve", ready_path="/ready"
        ) as server:
            async with open_console(str(socket)) as console:
                cards = await _python(console, "[card.name for card in await runtime.models()]")
            yield Watched(server, socket, ast.literal_eval(cards)[0])


def serve_command(model: str, *settings: str) -> Sequence[str]:
    options = [part for setting in settings for part in ("--set", setting)]
    return module_command("tripower", "serve", model, "--host", "127.0.0.1", "--port", "{port}", "--quiet", *options)
