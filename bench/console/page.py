"""What a browser loads for the page: the shell and everything that it names, as it comes over the wire."""

from __future__ import annotations

import re

from tripower.bench.children import Server
from tripower.bench.console.watched import watched_server
from tripower.bench.http_client import HttpConnection, build_request
from tripower.bench.schema import Cell, Target, single_cell
from tripower.runtime.kernel import Unavailable

PAGE = "/ui"
PAGE_KB = Target("ours", "<=", 100.0)
NAMED = re.compile(rb"""(?:src|href)=["']?([^"'\s>#]+)""")


async def page_cells() -> list[Cell]:
    """Starts a server for it. Raises `Unavailable`."""
    async with watched_server("toy") as watched:
        sizes = await page_sizes(watched.server)
    note = "uncompressed: " + ", ".join(f"{path} {size / 1000:.3g}" for path, size in sizes.items())
    return [single_cell("page weight", sum(sizes.values()) / 1000, unit="kB", target=PAGE_KB, note=note)]


async def page_sizes(server: Server) -> dict[str, int]:
    """Bytes of the page and of what it names, by path."""
    bodies = {PAGE: await _fetch(server, PAGE)}
    for name in dict.fromkeys(NAMED.findall(bodies[PAGE])):
        path = name.decode()
        if path.startswith("data:"):
            continue
        path = path if path.startswith("/") else f"/{path}"
        bodies[path] = await _fetch(server, path)
    return {path: len(body) for path, body in bodies.items()}


async def _fetch(server: Server, path: str) -> bytes:
    async with HttpConnection(server.port) as connection:
        answer = await connection.fetch(build_request("GET", path))
    if answer.status != 200:
        raise Unavailable(f"GET {path} was answered with {answer.status}")
    return answer.body
