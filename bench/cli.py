"""`tripower bench …`: which bench is meant. Each lives in a module of its own, imported only when it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

BENCHES = {
    "overhead": ("tripower.bench.overhead", "what the runtime adds: messages, steps, HTTP"),
    "serving": ("tripower.bench.serving", "tokens a second over HTTP, beside another engine on the same file"),
    "soak": ("tripower.bench.soak", "many streams for many minutes: does memory grow, is anything lost?"),
    "disconnect": ("tripower.bench.disconnect", "from a client's close to its seat being free"),
    "simulate": ("tripower.bench.simulate", "the whole runtime on virtual time, under seeded faults"),
    "fuzz-gguf": ("tripower.bench.fuzz_gguf", "mutated GGUF files against the reader"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench that the first argument names with the rest; returns its exit status. Raises what it raises.

    0 whatever the figures are; 1 for a missed target where `--check` was given, or a run of the simulation that broke an invariant; argparse ends the process with 2 for bad usage.
    """
    parser = argparse.ArgumentParser(
        prog="tripower bench",
        description="Measure. Every bench prints a table, or one JSON schema with --json, and shows its losing cells.",
        epilog="benches:\n" + "\n".join(f"  {name:<12}{about}" for name, (_, about) in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "bench", choices=sorted(BENCHES), metavar="BENCH", help="one of those below; it has a --help of its own"
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="what that bench understands")
    options = parser.parse_args(argv)
    module, _ = BENCHES[options.bench]
    return int(import_module(module).main(options.rest))
