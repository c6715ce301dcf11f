"""The HTTP service around an engine that tells when it opens and closes a sequence. A child of `tripower bench disconnect`.

    python -m tripower.bench.serving.toy_server --port PORT --microseconds STEP --members N

Each event is a line on standard output: the word, a number, and the moment in nanoseconds of the monotonic clock, which the processes
of one machine share. `freed` is a permit that the queue takes back, so that whoever waits has the seat; `opened` and `closed` are
sequences on the lane, at the boundary of a step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import trio

from tripower.actors.model_queue import ModelQueueActor
from tripower.actors.runtime import open_actors, toy_plan
from tripower.api.http import bind, start_api
from tripower.backends.toy import ToyEngine, ToyText
from tripower.runtime.configuration import Configuration, ServerSettings
from tripower.runtime.engine import LoadedModel, LoadSpecification, Progress
from tripower.runtime.kernel import Actor


class TellingEngine(ToyEngine):
    """A toy that writes down what happens to its sequences."""

    def open_sequence(self, sequence: int) -> None:
        super().open_sequence(sequence)
        tell("opened", sequence)

    def close_sequence(self, sequence: int) -> None:
        super().close_sequence(sequence)
        tell("closed", sequence)


def tell(what: str, sequence: int) -> None:
    sys.stdout.write(f"{what} {sequence} {time.monotonic_ns()}\n")
    sys.stdout.flush()


class TellingBackend:
    """Loads a `TellingEngine` with steps of a fixed length."""

    name = "toy"

    def __init__(self, microseconds: int) -> None:
        self._microseconds = microseconds

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedModel | None]:
        engine = TellingEngine(
            context=1 << 20, sequences_max=specification.sequences_max, native=True, step_microseconds=self._microseconds
        )
        yield LoadedModel(engine, ToyText())


def tell_permits(name: str, actor: Actor[Any]) -> None:
    """Make a queue write down each permit that comes back."""
    if isinstance(actor, ModelQueueActor):
        leave = actor.gate.leave

        def telling(ticket: int, *, expired: bool = False, served: float | None = None) -> None:
            leave(ticket, expired=expired, served=served)
            tell("freed", ticket)

        actor.gate.leave = telling  # type: ignore[method-assign]


async def serve(port: int, microseconds: int, members: int) -> None:
    """Serve until the process is ended."""
    settings = ServerSettings(host="127.0.0.1", port=port)
    plan = toy_plan(members_max=members, backends={"toy": TellingBackend(microseconds)}, on_instance=tell_permits)
    with bind(settings) as bound:
        async with open_actors(plan) as runtime:
            start_api(runtime, Configuration(server=settings), bound)
            await runtime.load("toy")
            await trio.sleep_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("port", "microseconds", "members"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    trio.run(serve, options.port, options.microseconds, options.members)


if __name__ == "__main__":
    main()
