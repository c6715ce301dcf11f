"""`tripower bench all`: what runs, where it goes, and what is said of what does not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tripower.bench import cli, suite
from tripower.bench.schema import Target, make_report, single_cell, unfinished
from tripower.bench.suite import RUNS, chosen


def test_every_run_is_of_a_bench_that_exists_and_has_a_file_of_its_own() -> None:
    assert {run.arguments[0] for run in RUNS} <= set(cli.BENCHES)
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_every_peer_and_bench_of_a_model_has_its_run() -> None:
    from tripower.bench.peers.registry import PEERS

    asked = [run.arguments[run.arguments.index("--peer") + 1] for run in RUNS if "--peer" in run.arguments]
    assert set(asked) == set(PEERS)
    measured = {run.arguments[0] for run in RUNS}
    assert {"serving", "engine", "fidelity", "mix", "overhead", "prefix", "structured", "speculative"} <= measured


@pytest.mark.parametrize(
    ("only", "count"),
    [(None, len(RUNS)), (["serving"], 6), (["mix", "disconnect"], 2), (["nothing-so-called"], 0), (["speculative-smollm2"], 1)],
)
def test_runs_are_chosen_by_name_or_by_how_their_names_begin(only: list[str] | None, count: int) -> None:
    assert len(chosen(only)) == count


def test_the_list_runs_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert suite.main(["--list", "--only", "mix"]) == 0
    assert capsys.readouterr().out == "mix-smollm2: tripower bench mix --model smollm2\n"


@pytest.mark.parametrize(
    ("value", "status", "check", "expected", "said"),
    [
        (1.0, 0, False, 0, "1 of 1 targets met"),
        (9.0, 0, False, 0, "0 of 1 targets met"),
        (9.0, 0, True, 1, "0 of 1 targets met"),
        (1.0, 3, False, 1, "did not run: status 3"),
    ],
)
def test_a_run_that_fails_is_named_and_a_missed_target_counts_when_asked(
    value: float,
    status: int,
    check: bool,
    expected: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        cell = single_cell("a cell", value, unit="s", target=Target("ours", "<=", 2.0))
        Path(command[command.index("--out") + 1]).write_bytes(msgspec.json.encode(make_report("mix", {}, [cell])))
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", run)
    arguments = ["--only", "mix", "--quick", "--results", str(tmp_path / "results"), *(["--check"] if check else [])]
    assert suite.main(arguments) == expected
    assert said in capsys.readouterr().out
    [command] = commands
    assert "--quick" in command and "mix" in command


def test_a_run_that_ends_early_leaves_what_it_had_and_nothing_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        if any("mix" in word for word in command):
            unfinished(Path(command[command.index("--out") + 1])).write_text("")
        return subprocess.CompletedProcess(command, 130)

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "console.unfinished.json").write_text("")
    mix, console = [suite.run_one(named, tmp_path, quick=True) for name in ("mix", "console") for named in chosen([name])]
    assert mix == ("failed", f"did not run: status 130; what it had is in {tmp_path / 'mix-smollm2.unfinished.json'}")
    assert console == ("failed", "did not run: status 130")
