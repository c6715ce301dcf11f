"""`tripower bench gpu`: the engine on a CUDA device, for whoever has one: right, fast with graphs, near the limit of its memory?

In one go, within five minutes for a model of a few hundred megabytes:

- its logits in float32 and as it serves, beside those of the engine on the processor, over a text (teacher forcing), and the tokens
  that either generates by itself;
- tokens a second of one and of sixteen streams, with decode steps replayed as CUDA graphs and launched one kernel at a time, in
  alternating blocks;
- bytes of weights that these steps read, beside what the device's memory copies.

`--device cpu` runs the same path on the processor, where there are no graphs: it shows that the bench runs.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tripower.bench.engines import STATE_BYTES_MAX, LogitsEngine, load_model
from tripower.bench.fidelity.command import TEXT
from tripower.bench.fidelity.divergence import Fidelity, compare
from tripower.bench.host import describe_host
from tripower.bench.measured_model import MeasuredModel, add_model_options, find_measured_model
from tripower.bench.paired import Progress, alternate, collected, quartiles, summarise
from tripower.bench.progress import progress_line
from tripower.bench.schema import Cell, Target, add_report_options, finish, make_report, paired_cell, single_cell
from tripower.runtime.engine import LoadedModel, LoadSpecification, SamplingParameters, StepRow
from tripower.runtime.host import read_host_limits
from tripower.runtime.kernel import InvalidConfiguration, ModelRefused

EXIT_NO_DEVICE = 3
SECONDS_MAX = 300.0
STREAMS = (1, 16)
WARM_STEPS = 4
"""Before each block: two launches, a capture, and a replay."""
CHUNK = 16
GREEDY = SamplingParameters(temperature=0.0)
FLOAT32_KL = Target("ours", "<=", 1e-5)
COMPACT_KL = Target("ours", "<=", 0.02)
GRAPHS_GAIN = Target("ratio", ">=", 1.0)
REUSE = Target("ours", ">=", 0.9)

Logits = NDArray[np.float32]


class Plan(NamedTuple):
    """How much is measured."""

    positions: int
    generated: int
    rounds: int
    steps: int
    copy_bytes: int


FULL = Plan(positions=256, generated=128, rounds=6, steps=128, copy_bytes=1 << 30)
QUICK = Plan(positions=16, generated=8, rounds=1, steps=4, copy_bytes=8 << 20)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 0, `EXIT_MISSED` with `--check`, or `EXIT_NO_DEVICE` where there is no such device.

    Raises `InvalidConfiguration` for a text that is too short, `ModelRefused` for a model that does not fit, and what a pull raises.
    """
    parser = argparse.ArgumentParser(
        prog="tripower bench gpu",
        description="Correctness, graphs on and off, and the share of the bandwidth limit, on a CUDA device. Five minutes at most.",
        epilog=f"The exit status is {EXIT_NO_DEVICE} where there is no such device.",
    )
    add_model_options(parser)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to see that the bench runs (cuda)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine on the processor (the cores)")
    add_report_options(parser)
    options = parser.parse_args(argv)
    from tripower.backends.picolm.accelerated.device import choose_device, device_name

    try:
        device = choose_device(options.device)
    except ModelRefused as refusal:
        print(f"tripower bench gpu: {refusal.message}, or try --device cpu --quick", file=sys.stderr)
        return EXIT_NO_DEVICE
    threads = options.threads or read_host_limits().cores
    host = describe_host()
    with progress_line() as progress:
        model = find_measured_model(options.model, options.encoding, progress)
        cells = measure(model, device, QUICK if options.quick else FULL, threads, progress)
    host |= model.described() | {"device": device_name(device), "threads": threads}
    return finish(make_report("gpu", host, cells), options)


def measure(model: MeasuredModel, device: Any, plan: Plan, threads: int, progress: Progress) -> list[Cell]:
    """All cells. Blocks; speeds that would begin after `SECONDS_MAX` are left out and say so."""
    until = time.monotonic() + SECONDS_MAX
    progress("loading the model on the processor")
    peer = load_model(model.path, context=context_of(plan), sequences=1, threads=threads)
    tokens = peer.text.tokenize(TEXT.read_text(encoding="utf-8"))[: plan.positions]
    if len(tokens) < plan.positions:
        raise InvalidConfiguration(f"the text has {len(tokens)} tokens of this model, and {plan.positions} are needed")
    expected = generate(peer, tokens[:CHUNK], plan.generated)
    cells = []
    for precision in ("float32", "compact"):
        progress(f"loading the model on {device} as {precision}")
        engine = load_on(model, device, precision, plan)
        cells += right_cells(peer, engine, precision, tokens, expected, progress)
        if precision == "float32":
            engine.close()
    peer.engine.close()
    cells += speed_cells(engine, device, plan, until, progress)
    engine.close()
    return cells


def context_of(plan: Plan) -> int:
    """Positions of a sequence: for the text, and for all blocks of a comparison."""
    return max(plan.positions, CHUNK + plan.generated, 2 * WARM_STEPS + plan.steps + 1)


# Is it right?


def right_cells(
    peer: LoadedModel, engine: Any, precision: str, tokens: list[int], expected: list[int], progress: Progress
) -> list[Cell]:
    """Divergence from the engine on the processor, and how many tokens are generated alike."""
    differences: list[float] = []
    [found] = compare(_chunks(peer, engine, tokens, differences, progress))
    target = FLOAT32_KL if precision == "float32" else COMPACT_KL
    generated = generate(LoadedModel(engine, peer.text), tokens[:CHUNK], len(expected))
    alike = next((i for i, pair in enumerate(zip(generated, expected, strict=True)) if pair[0] != pair[1]), len(expected))
    return [
        single_cell(f"KL divergence, {precision}", found.mean, unit="nats", target=target, note=_kl_note(found, engine)),
        single_cell(
            f"largest difference of logits, {precision}", max(differences), unit="share", note="of the largest logit around it"
        ),
        single_cell(f"top-1 agreement, {precision}", found.agreement, unit="share"),
        single_cell(
            f"tokens generated alike, {precision}",
            alike / len(expected),
            unit="share",
            note=f"{alike} of {len(expected)}, greedy",
        ),
    ]


def _kl_note(found: Fidelity, engine: Any) -> str:
    return f"{engine.info.kernels}; mean of {len(found.divergence)} positions, 99th percentile {found.percentile(99):.2g}"


def _chunks(
    peer: LoadedModel, engine: LogitsEngine, tokens: list[int], differences: list[float], progress: Progress
) -> Iterator[tuple[Logits, list[Logits]]]:
    reference: Any = peer.engine
    reference.open_sequence(0)
    engine.open_sequence(0)
    for start in range(0, len(tokens), CHUNK):
        progress(f"position {start} of {len(tokens)}")
        piece = tokens[start : start + CHUNK]
        expected, found = reference.logits(0, piece), engine.logits(0, piece)
        differences.append(float(np.abs(found - expected).max() / np.abs(expected).max()))
        yield expected, [found]


def generate(model: LoadedModel, prompt: Sequence[int], count: int) -> list[int]:
    """The next tokens, greedily, one by one."""
    engine, drawn, pending = model.engine, list[int](), tuple(prompt)
    engine.open_sequence(0)
    for index in range(count):
        drawn += engine.step([StepRow(0, engine.length(0), pending, True, index, GREEDY)])
        pending = (drawn[-1],)
    engine.close_sequence(0)
    return drawn


# Is it fast?


def speed_cells(engine: Any, device: Any, plan: Plan, until: float, progress: Progress) -> list[Cell]:
    """Tokens a second with and without graphs, the share of launches that were replays, and the share of the bandwidth limit."""
    cells, on_device = [], device.type == "cuda"
    bandwidth = copy_bandwidth(device, plan)
    for streams in STREAMS:
        name = f"decode, {streams} stream{'s' if streams > 1 else ''}: graphs on against off"
        if time.monotonic() > until:
            cells.append(single_cell(name, None, unit="tokens/s", note=f"left out: {SECONDS_MAX:.0f} s were over"))
            continue
        blocks = [functools.partial(tokens_per_second, engine, streams, plan.steps, graphs) for graphs in (True, False)]
        paired = summarise(alternate(*blocks, rounds=plan.rounds, label=name, progress=progress))
        cells.append(paired_cell(name, paired, unit="tokens/s", target=GRAPHS_GAIN if on_device else None))
        if streams == 1:
            read = engine.weight_bytes_read * paired.ours
            note = f"{engine.weight_bytes_read / 1e6:.0f} MB of weights a token; memory copies at {bandwidth / 1e9:.0f} GB/s"
            cells.append(single_cell("share of the bandwidth limit, 1 stream", read / bandwidth, unit="share", note=note))
    tokens_per_second(engine, STREAMS[-1], plan.steps, True)
    found = engine.captures()
    reasons = {shape.reason for shape in found.shapes.values() if shape.reason}
    share = found.reuse_bps / 10_000
    note = f"{found.captures} captures, {found.nbytes >> 20} MiB{'; ' + '; '.join(sorted(reasons)) if reasons else ''}"
    cells.append(
        single_cell("launches replayed", share, unit="share", target=REUSE if on_device and plan is FULL else None, note=note)
    )
    return cells


def tokens_per_second(engine: Any, streams: int, steps: int, graphs: bool) -> float:
    """One block: so many streams for so many steps, from their beginning. What a step returns has been waited for."""
    engine.use_graphs(graphs)
    for sequence in range(streams):
        engine.open_sequence(sequence)
    tokens = [1] * streams
    began = 0.0
    for index in range(WARM_STEPS + steps):
        if index == WARM_STEPS:
            began = time.perf_counter()
        rows = [StepRow(s, index, (tokens[s],), True, index, GREEDY) for s in range(streams)]
        tokens = engine.step(rows)
    seconds = time.perf_counter() - began
    for sequence in range(streams):
        engine.close_sequence(sequence)
    return streams * steps / seconds


def copy_bandwidth(device: Any, plan: Plan) -> float:
    """Bytes a second that the device's memory moves, read and written, when it copies: the best quartile of some copies."""
    import torch

    from tripower.backends.picolm.accelerated.device import open_stream

    stream = open_stream(device)
    rates = []
    with collected(), stream.entered():
        source = torch.ones(plan.copy_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        for _ in range(2 + 4 * plan.rounds):
            stream.wait()
            began = time.perf_counter()
            target.copy_(source)
            stream.wait()
            rates.append(2 * plan.copy_bytes / (time.perf_counter() - began))
        del source, target
        stream.free_scratch()
    return quartiles(rates[2:])[2]


def load_on(model: MeasuredModel, device: Any, precision: Any, plan: Plan) -> Any:
    """The engine for accelerators on this device. Blocks; raises `ModelRefused`."""
    from tripower.backends.model_file import open_model
    from tripower.backends.picolm.accelerated.load import load_accelerated
    from tripower.backends.picolm.backend import plan_load

    specification = LoadSpecification(
        name=model.name,
        source=str(model.path),
        context=context_of(plan),
        sequences_max=STREAMS[-1],
        state_bytes_max=STATE_BYTES_MAX,
        threads=0,
        prefill_chunk=CHUNK,
    )
    with open_model(model.path) as file:
        planned = plan_load(file, specification)
        loading = load_accelerated(
            file,
            planned.decoder,
            planned.wanted,
            planned.context,
            specification,
            lambda stage, done: None,
            device=device,
            precision=precision,
        )
        while True:
            try:
                next(loading)
            except StopIteration as end:
                return end.value


if __name__ == "__main__":
    sys.exit(main())
