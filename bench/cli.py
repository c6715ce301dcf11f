"""`tripower bench …`: which bench is meant. Each lives in a module of its own, imported only when it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

BENCHES = {
    "overhead": ("tripower.bench.overhead.command", "what the runtime adds: messages, steps, HTTP"),
    "serving": ("tripower.bench.serving.command", "tokens a second over HTTP, beside another engine on the same file"),
    "fidelity": ("tripower.bench.fidelity.command", "distributions of the next token, against float32 arithmetic"),
    "engine": ("tripower.bench.engine.command", "the engine without HTTP, against what the machine allows"),
    "gpu": ("tripower.bench.gpu", "a CUDA device: is it right, what do graphs bring, how near is the bandwidth limit?"),
    "structured": ("tripower.bench.structured.command", "answers held to a JSON schema: are they valid, what does it cost?"),
    "prefix": ("tripower.bench.prefix.command", "prompts that begin alike: what reuse saves, what a miss costs"),
    "speculative": ("tripower.bench.speculative.command", "guessed tokens: what they bring, and that no answer changes"),
    "overload": ("tripower.bench.overload.command", "ten times the capacity, a noisy key, a crowd of connections"),
    "console": ("tripower.bench.console.command", "looking inside a running server, the recorder, the page: what they cost"),
    "mix": ("tripower.bench.serving.mix", "streams that run while a long prompt arrives"),
    "soak": ("tripower.bench.serving.soak", "many streams for many minutes: does memory grow, is anything lost?"),
    "disconnect": ("tripower.bench.serving.disconnect", "from a client's close to its seat being free"),
    "simulate": ("tripower.bench.simulate", "the whole runtime on virtual time, under seeded faults"),
    "all": ("tripower.bench.suite", "every bench that the documentation shows, each into its file"),
    "fuzz-gguf": ("tripower.bench.fuzz_gguf", "mutated GGUF files against the reader"),
    "fuzz-http": ("tripower.bench.fuzz_http.command", "requests of every kind of wrongness against the service"),
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
