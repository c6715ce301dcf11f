"""`tripower bench serving`: it runs and reports, and says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tripower.bench.peers import registry
from tripower.bench.serving import command
from tripower.bench.serving.workload import long_prompt, short_prompt
from tripower.runtime.kernel import InvalidConfiguration

Run = Callable[..., dict[str, Any]]


def test_ours_alone_has_no_ratios(run_quick: Run) -> None:
    report = run_quick(command.main, ["--model", "toy", "--concurrency", "1,3"])
    assert [cell["name"] for cell in report["cells"]] == [
        "generation, 1 at once",
        "first token, 1 at once",
        "generation, 3 at once",
        "first token, 3 at once",
        "prefill",
    ]
    assert all(cell["ratio"] is None and cell["iqr"] for cell in report["cells"])
    assert report["host"]["model"] == "toy"


@pytest.mark.parametrize(
    ("name", "install"),
    [
        ("llamacpp", r"tripower\[llamacpp\]"),
        ("mistralrs", r"tripower\[mistralrs\]"),
        ("transformers", r"tripower\[transformers\]"),
    ],
)
def test_a_missing_peer_is_named_with_the_extra_that_brings_it(
    name: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    with pytest.raises(InvalidConfiguration, match=install):
        command.main(["--peer", name])


def test_the_toy_has_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_peer", lambda name: None)
    with pytest.raises(InvalidConfiguration, match="--peer"):
        command.main(["--quick", "--model", "toy", "--peer", "llamacpp"])


@pytest.mark.parametrize(
    "arguments", [["--concurrency", "0"], ["--concurrency", "1,x"], ["--tokens", "5000"], ["--peer", "nobody"]]
)
def test_bad_usage_ends_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_no_prompt_begins_like_another() -> None:
    prompts = [short_prompt(number) for number in range(200)] + [long_prompt(number, 50) for number in range(200)]
    assert len({prompt[:40] for prompt in prompts}) == len(prompts)
    assert short_prompt(7) == short_prompt(7)
    assert long_prompt(7, 50) == long_prompt(7, 50)


@pytest.mark.long
@pytest.mark.parametrize("peer", sorted(registry.PEERS))
def test_a_peer_is_started_from_its_wheel(peer: str, smollm2_path: Path, run_quick: Run) -> None:
    try:
        registry.check_peer(peer)
    except InvalidConfiguration as missing:
        pytest.skip(str(missing))
    report = run_quick(command.main, ["--model", str(smollm2_path), "--concurrency", "2", "--peer", peer])
    assert all(cell["ratio"] is not None for cell in report["cells"])
