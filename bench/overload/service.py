"""The server under load: a child process with several API keys, an audit log, and its figures to look at."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import msgspec

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.http_client import Answer, HttpConnection, build_request
from tripower.bench.overload.figures import Reading, read_figures
from tripower.runtime.kernel import Unavailable

NOISY = "noisy"
WEIGHTS = {NOISY: 1.0, "quiet-a": 1.0, "quiet-b": 2.0, "quiet-c": 0.5}
"""The keys that ask for work, and their shares."""
QUIET = tuple(name for name in WEIGHTS if name != NOISY)
WATCHER = "watcher"
"""The key that only looks."""


@attrs.frozen
class Service:
    """A running server, the name of its model, and a key for each name."""

    server: Server
    model: str
    keys: dict[str, str]
    audit_file: Path

    def headers(self, key: str) -> dict[str, str]:
        """Who asks."""
        return {"authorization": f"Bearer {self.keys[key]}"}

    async def look(self, path: str) -> Answer:
        """GET as the watcher. Blocks; raises `Unavailable` unless the answer is 200."""
        async with HttpConnection(self.server.port) as connection:
            answer = await connection.fetch(build_request("GET", path, headers=self.headers(WATCHER)))
        if answer.status != 200:
            raise Unavailable(f"GET {path} was answered with {answer.status}")
        return answer

    async def figures(self) -> Reading:
        """What the server counts, now."""
        return read_figures((await self.look("/metrics")).body.decode())

    async def taken_slots(self) -> int:
        """Seats that `/slots` calls taken."""
        slots = msgspec.json.decode((await self.look("/slots")).body)
        return sum(slot["is_processing"] for slot in slots)


@asynccontextmanager
async def open_service(source: str, *, seats: int, threads: int, settings: Sequence[str] = ()) -> AsyncIterator[Service]:
    """Start a server with the keys of `WEIGHTS` and twice as many waiting places as seats; it ends with the block.

    Blocks until it is ready. Raises `Unavailable` when it does not start.
    """
    keys = {name: f"tp-{secrets.token_urlsafe(24)}" for name in (*WEIGHTS, WATCHER)}
    with tempfile.TemporaryDirectory(prefix="tripower-overload-") as folder:
        keys_file, audit_file = Path(folder) / "keys.toml", Path(folder) / "audit.jsonl"
        keys_file.touch(mode=0o600)
        keys_file.write_text("".join(key_entry(name, key) for name, key in keys.items()))
        chosen = (
            f"auth.keys_file={keys_file}",
            f"server.audit_file={audit_file}",
            "server.metrics_families=vllm",
            f"engine.threads={threads}",
            f"scheduler.batch_members={seats}",
            f"scheduler.waiting={2 * seats}",
            *settings,
        )
        async with running_server(serve_command(source, *chosen), name="tripower serve", ready_path="/ready") as server:
            service = Service(server, "", keys, audit_file)
            models = msgspec.json.decode((await service.look("/v1/models")).body)["data"]
            yield attrs.evolve(service, model=models[0]["id"])


def serve_command(*arguments: str) -> list[str]:
    """`tripower serve` for a child process: models first, then settings as PATH=VALUE. The port is filled in by `running_server`."""
    models = [each for each in arguments if not _is_setting(each)]
    settings = [part for each in arguments if _is_setting(each) for part in ("--set", each)]
    return module_command("tripower", "serve", *models, "--host", "127.0.0.1", "--port", "{port}", "--quiet", *settings)


def _is_setting(argument: str) -> bool:
    path, equals, _ = argument.partition("=")
    return bool(equals) and "." in path and "/" not in path


def key_entry(name: str, key: str) -> str:
    """A key as the file of keys has it."""
    weight = WEIGHTS.get(name, 1.0)
    return f'[[key]]\nname = "{name}"\nweight = {weight}\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n\n'
