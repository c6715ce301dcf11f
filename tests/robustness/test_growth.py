"""Memory of a server's own, resident or swapped out, over many requests: flat once it has warmed up.

`tripower bench soak` looks for the same over many minutes and many streams at once.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tripower.bench.children import Server, module_command, running_server
from tripower.bench.http_client import HttpConnection
from tripower.bench.serving.workload import generate, short_prompt

MEGA = 1e6
GROWTH_MAX = 4 * MEGA
WARM = 2
KEPT_PROMPTS = 8
"""So few that the first round fills what is kept of prompts, which is memory well used and no growth."""
ROUNDS = 6


async def serve_and_measure(
    source: str, shapes: list[tuple[int, int]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[float]]:
    """For each shape (requests, tokens each) the memory after each round; the first rounds warm up."""
    monkeypatch.setenv("TRIPOWER_HOME", str(home))
    command = module_command("tripower", "serve", f"it={source}", "--host", "127.0.0.1", "--port", "{port}", "--quiet")
    command += ["--set", f"scheduler.prefix_entries={KEPT_PROMPTS}"]
    found: dict[str, list[float]] = {}
    async with running_server(command, name="tripower serve", ready_path="/ready") as server:
        number = 0
        for requests, tokens in shapes:
            found[f"{requests} requests of {tokens} tokens"] = samples = []
            for _ in range(WARM + ROUNDS):
                number = await ask(server, requests, tokens, number)
                samples.append(server.anonymous_bytes())
    return found


async def ask(server: Server, requests: int, tokens: int, first: int) -> int:
    """So many requests one after the other, on a connection of their own. Returns the next number of a prompt."""
    async with HttpConnection(server.port) as connection:
        for number in range(first, first + requests):
            result = await generate(connection, "it", short_prompt(number), tokens)
            assert result.complete and result.tokens == tokens
    return first + requests


def assert_flat(found: dict[str, list[float]]) -> None:
    for shape, samples in found.items():
        settled = samples[WARM:]
        half = len(settled) // 2
        growth = min(settled[half:]) - min(settled[:half])
        assert growth <= GROWTH_MAX, f"{shape}: grew by {growth / MEGA:.1f} MB: {[round(each / MEGA, 1) for each in samples]}"


# BB-076, BB-077
@pytest.mark.long
async def test_many_short_and_few_long_answers_leave_memory_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await serve_and_measure("toy", [(200, 1), (20, 500)], tmp_path, monkeypatch)
    assert_flat(found)


# BB-076, BB-077
@pytest.mark.long
async def test_a_real_model_leaves_memory_as_it_was(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await serve_and_measure(str(smollm2_path), [(8, 1), (1, 60)], tmp_path, monkeypatch)
    assert_flat(found)


# BB-077
def test_what_was_swapped_out_counts_as_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmRSS:\t  900 kB\nRssAnon:\t  300 kB\nRssFile:\t  600 kB\nVmSwap:\t  200 kB\n")
    monkeypatch.setattr("builtins.open", lambda path, opened=open: opened(status))

    server = Server.__new__(Server)
    server.process = SimpleNamespace(pid=1)  # type: ignore[assignment] # nothing else of it is looked at
    assert server.anonymous_bytes() == 500 * 1024
