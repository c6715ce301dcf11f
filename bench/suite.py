"""`tripower bench all`: every bench whose figures the documentation shows, one after the other, each into its own file.

A bench that cannot run (a peer is not installed, a backend refuses) does not end the others: it is named at the end, and its old file
stays. Each runs in a process of its own, so that none inherits another's heap, threads or compiled code. Some three
hours in all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tripower.bench.children import module_command
from tripower.bench.schema import EXIT_MISSED, Report, unfinished

RESULTS = Path("bench") / "results"
SMALL, GEMMA = ("--model", "smollm2"), ("--model", "gemma3-270m")
SMALL_Q4_0 = (*SMALL, "--as", "Q4_0")
REPEATING = ("--work", "edit,quote,code,json,high-acceptance")
"""What a target is about: a base model does not answer, and what it makes of a chat or a translation soon runs in circles."""


class Run(msgspec.Struct, frozen=True):
    """One bench: the name of its file, and what `tripower bench` is told."""

    name: str
    arguments: tuple[str, ...]


RUNS = (
    Run("overhead", ("overhead", *SMALL)),
    Run("disconnect", ("disconnect",)),
    Run("serving-smollm2-llamacpp", ("serving", *SMALL, "--peer", "llamacpp")),
    Run("serving-smollm2-q4_0-llamacpp", ("serving", *SMALL_Q4_0, "--peer", "llamacpp")),
    Run("serving-gemma3-270m-llamacpp", ("serving", *GEMMA, "--peer", "llamacpp")),
    Run("serving-smollm2-mistralrs", ("serving", *SMALL, "--peer", "mistralrs")),
    Run("serving-smollm2-transformers", ("serving", *SMALL, "--peer", "transformers")),
    Run("serving-smollm2-own-llamacpp", ("serving", *SMALL, "--peer", "own-llamacpp")),
    Run("fidelity-smollm2", ("fidelity", *SMALL)),
    Run("fidelity-smollm2-q4_0", ("fidelity", *SMALL_Q4_0)),
    Run("fidelity-gemma3-270m", ("fidelity", *GEMMA)),
    Run("engine-smollm2", ("engine", *SMALL)),
    Run("engine-smollm2-q4_0", ("engine", *SMALL_Q4_0, "--only", "steps", "--only", "memory")),
    Run("engine-gemma3-270m", ("engine", *GEMMA, "--only", "steps", "--only", "memory")),
    Run("mix-smollm2", ("mix", *SMALL)),
    Run("overload-smollm2", ("overload", *SMALL)),
    Run("console", ("console", *SMALL)),
    Run("prefix-smollm2", ("prefix", *SMALL, "--peer", "llamacpp")),
    Run("prefix-gemma3-270m", ("prefix", *GEMMA)),
    Run("structured-smollm2", ("structured", *SMALL)),
    Run("speculative-smollm2", ("speculative", *SMALL)),
    Run("speculative-gemma3-270m", ("speculative", *GEMMA, *REPEATING)),
    Run("speculative-smollm2-llamacpp", ("speculative", *SMALL, "--peer", "llamacpp")),
    Run("speculative-smollm2-q4_0-llamacpp", ("speculative", *SMALL_Q4_0, "--peer", "llamacpp")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run them; returns 1 when one could not run, or with `--check` when a target was missed. Blocks for some three hours."""
    parser = argparse.ArgumentParser(
        prog="tripower bench all", description="Every bench that the documentation shows, each into its file."
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help=f"where the files go ({RESULTS})")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only the file of this name, or those that begin so; several times"
    )
    parser.add_argument("--list", action="store_true", help="only say what would run")
    parser.add_argument("--check", action="store_true", help=f"exit with {EXIT_MISSED} when a target is missed, too")
    parser.add_argument("--quick", action="store_true", help="shows that the benches run; their figures say little")
    options = parser.parse_args(argv)
    runs = chosen(options.only)
    if options.list:
        print("\n".join(f"{run.name}: tripower bench {' '.join(run.arguments)}" for run in runs))
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    states = [run_one(run, options.results, quick=options.quick) for run in runs]
    print("\n".join(f"{run.name:<32}{said}" for run, (_, said) in zip(runs, states, strict=True)))
    wanted = {"ok", "missed"} - ({"missed"} if options.check else set())
    return 0 if all(state in wanted for state, _ in states) else EXIT_MISSED


def chosen(only: Sequence[str] | None) -> list[Run]:
    """The runs that are named so, or whose names begin so where none is; all without any."""
    names = {run.name for run in RUNS}

    def is_meant(run: Run, wanted: str) -> bool:
        return run.name == wanted if wanted in names else run.name.startswith(wanted)

    return [run for run in RUNS if not only or any(is_meant(run, wanted) for wanted in only)]


def run_one(run: Run, results: Path, *, quick: bool) -> tuple[str, str]:
    """`ok`, `missed` or `failed`, and a line for people. Blocks for as long as it takes; its errors go to ours as they come."""
    file = results / f"{run.name}.json"
    command = module_command("tripower", "bench", *run.arguments, "--out", str(file), *(["--quick"] if quick else []))
    print(f"== {run.name}", file=sys.stderr, flush=True)
    unfinished(file).unlink(missing_ok=True)
    child = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if child.returncode:
        left = f"; what it had is in {unfinished(file)}" if unfinished(file).exists() else ""
        return "failed", f"did not run: status {child.returncode}{left}"
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    aimed = [cell for cell in report.cells if cell.ok is not None]
    met = sum(cell.ok is True for cell in aimed)
    return "ok" if report.ok else "missed", f"{met} of {len(aimed)} targets met"
