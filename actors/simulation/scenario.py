"""What happens in one simulated run, drawn from one seed.

A scenario is plain data and says everything: who asks when for what, who gives up where, what fails and when the lights go out. The
run itself draws nothing more, except through generators that are seeded from here.
"""

from __future__ import annotations

import random

import attrs

NEVER_STEP = 1 << 30


@attrs.frozen(kw_only=True)
class Caller:
    """One request. `cancel_at_step` counts the steps of its task, so that over many seeds every await is hit."""

    number: int
    arrives_at: float
    prompt: str
    max_tokens: int
    ignore_eos: bool
    temperature: float
    seed: int
    timeout: float | None
    cancel_at_step: int = NEVER_STEP
    leaves_after_events: int = NEVER_STEP
    reads_slowly: float = 0.0
    model: str = "toy"
    wants_reports: bool = False
    """Whether it asks for log probabilities and progress."""
    stop_token: int = -1
    min_tokens: int = 0
    identity: str = ""


@attrs.frozen(kw_only=True)
class Faults:
    """What goes wrong. Rates are per opportunity."""

    step_fails: float = 0.0
    step_slow: float = 0.0
    slow_seconds: float = 1.0
    load_fails: float = 0.0
    crash_rate: float = 0.0
    """Of each message that an actor named in `crash_actors` gets."""
    crash_actors: tuple[str, ...] = ()
    crashes_max: int = 0
    shutdown_at: float | None = None


@attrs.frozen(kw_only=True)
class Scenario:
    seed: int
    members_max: int
    waiting_max: int
    steps_per_job: int
    rows_max: int
    restarts_max: int
    callers: tuple[Caller, ...]
    faults: Faults
    kept_entries: int = 0
    """States of prompts that are kept for reuse; 0: none ever is."""


def draw_scenario(seed: int) -> Scenario:
    """The scenario of a seed: small, with more faults than any server ever sees."""
    rng = random.Random(seed)
    count = rng.randint(1, 14)
    spread = rng.choice([0.0, 0.05, 0.5, 3.0])
    callers = tuple(_draw_caller(rng, number, spread) for number in range(count))
    reuse = random.Random(seed ^ 0xCACE)
    kept_entries = reuse.choice([0, 1, 3, 20])
    if kept_entries:
        callers = tuple(_share_beginnings(reuse, caller) for caller in callers)
    return Scenario(
        seed=seed,
        kept_entries=kept_entries,
        members_max=rng.randint(1, 4),
        waiting_max=rng.choice([0, 1, 2, 8, 16]),
        steps_per_job=rng.choice([1, 2, 4, 8]),
        rows_max=rng.choice([1, 3, 8, 64]),
        restarts_max=rng.choice([0, 1, 3, 10]),
        callers=callers,
        faults=_draw_faults(rng),
    )


def _draw_caller(rng: random.Random, number: int, spread: float) -> Caller:
    kind = rng.choice(
        ["patient", "patient", "patient", "cancels", "cancels", "leaves", "expires", "expires", "slow", "lost", "huge"]
    )
    caller = Caller(
        number=number,
        arrives_at=rng.uniform(0, spread),
        prompt="".join(rng.choice("abc ") for _ in range(rng.choice([1, 1, 2, 7, 30]))) if kind != "huge" else "x" * 400,
        max_tokens=rng.choice([0, 1, 1, 3, 10, 25]),
        ignore_eos=rng.random() < 0.5,
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.getrandbits(32),
        timeout=rng.choice([0.0, 0.001, 0.05, 0.2, 1.0]) if kind == "expires" else None,
        cancel_at_step=rng.randint(1, 25) if kind == "cancels" else NEVER_STEP,
        leaves_after_events=rng.randint(1, 6) if kind == "leaves" else NEVER_STEP,
        reads_slowly=rng.choice([0.5, 5.0]) if kind == "slow" else 0.0,
        model="missing" if kind == "lost" else "toy",
    )
    asked = random.Random(caller.seed)
    return attrs.evolve(
        caller,
        wants_reports=asked.random() < 0.3,
        stop_token=asked.choice([-1, -1, -1, ord("a"), ord("q")]),
        min_tokens=min(asked.choice([0, 0, 0, 2, 30]), caller.max_tokens),
    )


def _share_beginnings(rng: random.Random, caller: Caller) -> Caller:
    """What makes prompts of several callers begin alike, around the borders of pages too, whoever they are."""
    beginning = ("what many of them begin with " * 3)[: rng.choice([0, 1, 15, 16, 17, 32, 40, 80])]
    return attrs.evolve(caller, identity=rng.choice(["", "a", "b"]), prompt=beginning + caller.prompt)


def _draw_faults(rng: random.Random) -> Faults:
    kind = rng.choice(["none", "none", "steps", "slow", "crashes", "crashes", "storm", "load", "shutdown", "everything"])
    actors = tuple(rng.sample(["queue:toy", "device:cpu0", "registry"], rng.randint(1, 3)))
    everything = kind == "everything"
    return Faults(
        step_fails=rng.choice([0.05, 0.3, 1.0]) if kind == "steps" or everything else 0.0,
        step_slow=0.2 if kind == "slow" or everything else 0.0,
        slow_seconds=rng.choice([1.0, 200.0]) if kind == "slow" else 1.0,  # 200 wedges the device
        load_fails=rng.choice([0.5, 1.0]) if kind == "load" else 0.1 if everything else 0.0,
        crash_rate=0.3 if kind == "storm" else 0.03 if kind == "crashes" or everything else 0.0,
        crash_actors=actors,
        crashes_max=40 if kind == "storm" else rng.randint(1, 3),
        shutdown_at=rng.uniform(0, 1.5) if kind == "shutdown" or (everything and rng.random() < 0.5) else None,
    )
