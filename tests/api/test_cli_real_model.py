"""The whole way with a real model: the command line, and the official client against `tripower serve`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import trio

from tests.api.children import tripower
from tests.api.test_cli_serve import serving
from tripower.api.cli import exit_codes

QUESTION = "What is the capital of France?"
SINGLE_THREAD = ("--set", "engine.threads=1")


@pytest.fixture(scope="module")
def address(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("home"), f"smollm2={smollm2_path}", *SINGLE_THREAD) as (_, url, text):
        assert "135 M parameters" in text
        assert "engine    picolm, 1 thread (our own engine knows this model)\n" in text
        yield url


def test_run_answers(smollm2_path: Path, tmp_path: Path) -> None:
    command = ("run", str(smollm2_path), QUESTION, "--temperature", "0", "--seed", "1", "--max-tokens", "12", *SINGLE_THREAD)
    finished = tripower(tmp_path, *command)
    assert finished.returncode == 0, finished.stderr
    assert "Paris" in finished.stdout
    assert "tokens/s, first token after" in finished.stderr


@pytest.mark.long
def test_a_model_without_a_template_names_the_cure(gemma3_path: Path, tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", str(gemma3_path), "hi", "--quiet", *SINGLE_THREAD)
    assert finished.returncode == exit_codes.REFUSED
    assert finished.stderr == (
        "tripower: this model has no chat template: continue plain text with `tripower run MODEL --raw PROMPT`\n"
    )


def test_memory_that_does_not_hold_the_model_is_told_before_it_is_loaded(smollm2_path: Path, tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", str(smollm2_path), "hi", "--quiet", "--set", "engine.state_bytes=1000000")
    assert finished.returncode == exit_codes.REFUSED
    assert "raise the memory limit or engine.state_bytes" in finished.stderr


def test_the_official_client_chats_with_and_without_streaming(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["smollm2"]
        whole = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=12
        )
        text = whole.choices[0].message.content
        assert text is not None
        assert "Paris" in text
        assert whole.usage is not None
        with client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        used = chunks[-1].usage
        assert used is not None  # what was kept of the first counts as cached in the second
        assert used.total_tokens == whole.usage.total_tokens
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nonsense", prompt="x")


# The client breaks off its own generators once it has read the end mark, and Trio is more attentive than asyncio.
@pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx|httpcore):ResourceWarning")
async def test_the_official_client_on_trio_streams_several_at_a_time(address: str) -> None:
    texts: list[str] = []
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

        async def ask() -> None:
            stream = await client.chat.completions.create(
                model="smollm2", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=8, stream=True
            )
            texts.append("".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        whole = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=8
        )
    assert len(set(texts)) == 1
    assert whole.choices[0].message.content == texts[0]
