"""Which shapes of a step are replayed instead of launched: the states of captures and their accounts, without any device.

A capture pays when the same shape comes again and again, and it costs memory for as long as it lives. So a shape is launched eagerly a
few times, then captured once, then replayed; there are so many captures and bytes at most; and whoever makes room is the one that was
not used for the longest time, unless it is too young: two shapes that take turns must not capture each other away.

    cold ─► counting ─► capturing ─► captured ⇄ replaying
                 │           └─► uncapturable (it failed, or its replay had other bits: launched eagerly from then on)
                 └─► over-budget (no room now: launched eagerly, captured when there is room)

A replay has the bits of the launch that it stands for: that is checked when it is captured, on the inputs of the moment, and again at
every so many replays where that is asked for. Everything goes back to cold when weights or states move (`invalidate`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Protocol, TypeVar

import attrs
import msgspec

Outputs = TypeVar("Outputs")
Outputs_co = TypeVar("Outputs_co", covariant=True)
BASIS_POINTS = 10_000


class State(enum.Enum):
    """Of one shape."""

    COLD = "cold"
    COUNTING = "counting"
    CAPTURING = "capturing"
    CAPTURED = "captured"
    REPLAYING = "replaying"
    UNCAPTURABLE = "uncapturable"
    OVER_BUDGET = "over-budget"


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.COLD: frozenset({State.COUNTING, State.UNCAPTURABLE}),
    State.COUNTING: frozenset({State.CAPTURING, State.OVER_BUDGET, State.COLD}),
    State.CAPTURING: frozenset({State.CAPTURED, State.UNCAPTURABLE, State.OVER_BUDGET}),
    State.CAPTURED: frozenset({State.REPLAYING, State.COLD}),
    State.REPLAYING: frozenset({State.CAPTURED, State.UNCAPTURABLE, State.COLD}),
    State.UNCAPTURABLE: frozenset({State.COLD}),
    State.OVER_BUDGET: frozenset({State.CAPTURING, State.COLD}),
}


class Capture(Protocol[Outputs_co]):
    """A recorded launch. Its outputs are overwritten by the next replay of any capture."""

    nbytes: int

    def replay(self) -> Outputs_co: ...

    def close(self) -> None: ...


class CapturePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to capture, and how much."""

    capture_after: int = 2
    """Eager launches before a shape is captured."""
    captures_max: int = 32
    bytes_max: int = 2 << 30
    residency_launches: int = 64
    """Launches, of whatever shape, that a capture lives at least before another may take its room."""
    audit_every: int = 0
    """Compare every so many replays of a shape with an eager launch; 0 never does."""


class ShapeStatistics(msgspec.Struct, frozen=True):
    """Of one shape. `reason` says why it is uncapturable."""

    state: str
    eager: int
    captures: int
    replays: int
    nbytes: int
    reason: str = ""


class CaptureStatistics(msgspec.Struct, frozen=True):
    """Launches of all shapes are `eager` + `captures` + `replays`."""

    eager: int
    captures: int
    replays: int
    variants: int
    """Captures that live."""
    nbytes: int
    uncapturable: int
    over_budget: int
    reuse_bps: int
    """Share of launches that were replays, in basis points."""
    singleton_bps: int
    """Share of shapes ever captured that were replayed less than twice."""
    shapes: dict[str, ShapeStatistics]


@attrs.define(eq=False)
class _Shape(Generic[Outputs]):
    state: State = State.COLD
    seen: int = 0
    """Eager launches since it was cold."""
    eager: int = 0
    captures: int = 0
    replays: int = 0
    capture: Capture[Outputs] | None = None
    captured_at: int = 0
    used_at: int = 0
    bytes_needed: int = 0
    """What its capture took the last time; 0 before the first."""
    reason: str = ""

    def move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state


class GraphCache(Generic[Outputs]):
    """Launches work by shape. Belongs to one lane; nothing here waits.

    `capture` records work and returns what replays it; `same` compares the bits of two outputs. Whoever gets outputs reads them before the
    next launch, which may write over them.
    """

    def __init__(
        self,
        capture: Callable[[Callable[[], Outputs]], Capture[Outputs]],
        same: Callable[[Outputs, Outputs], bool],
        policy: CapturePolicy | None = None,
    ) -> None:
        self._capture, self._same = capture, same
        self._policy = policy or CapturePolicy()
        self._shapes: dict[Hashable, _Shape[Outputs]] = {}
        self._launches = 0

    def launch(self, key: Hashable, work: Callable[[], Outputs], *, never: str = "") -> Outputs:
        """Run `work`, or replay what was recorded of it. `never` says why this shape must not be captured.

        `work` must be repeatable on the inputs of the moment: it runs once more where it is captured. What it raises passes; what its
        capture raises makes the shape uncapturable.
        """
        shape = self._shapes.setdefault(key, _Shape())
        self._launches += 1
        if never and shape.state is State.COLD:
            shape.reason = never
            shape.move(State.UNCAPTURABLE)
        if shape.state is State.CAPTURED:
            return self._replay(shape, work)
        result = work()
        if shape.state is State.COLD:
            shape.move(State.COUNTING)
        if shape.seen >= self._policy.capture_after and shape.state in (State.COUNTING, State.OVER_BUDGET):
            self._try_capture(shape, work, result)
            return result
        shape.seen += 1
        shape.eager += 1
        return result

    def invalidate(self) -> None:
        """Give up all captures; every shape starts again. Counters stay."""
        for shape in self._shapes.values():
            if shape.state is not State.COLD:
                self._cool(shape)

    def statistics(self) -> CaptureStatistics:
        shapes = list(self._shapes.values())
        replays, captures, eager = (sum(getattr(each, name) for each in shapes) for name in ("replays", "captures", "eager"))
        captured = [each for each in shapes if each.captures]
        return CaptureStatistics(
            eager=eager,
            captures=captures,
            replays=replays,
            variants=len(self._live()),
            nbytes=self._bytes(),
            uncapturable=sum(each.state is State.UNCAPTURABLE for each in shapes),
            over_budget=sum(each.state is State.OVER_BUDGET for each in shapes),
            reuse_bps=BASIS_POINTS * replays // max(1, eager + captures + replays),
            singleton_bps=BASIS_POINTS * sum(each.replays < 2 for each in captured) // max(1, len(captured)),
            shapes={
                str(key): ShapeStatistics(
                    each.state.value,
                    each.eager,
                    each.captures,
                    each.replays,
                    each.capture.nbytes if each.capture else 0,
                    each.reason,
                )
                for key, each in self._shapes.items()
            },
        )

    def _replay(self, shape: _Shape[Outputs], work: Callable[[], Outputs]) -> Outputs:
        assert shape.capture is not None
        shape.move(State.REPLAYING)
        try:
            result = shape.capture.replay()
        except BaseException:
            self._cool(shape)
            raise
        shape.replays += 1
        shape.used_at = self._launches
        every = self._policy.audit_every
        if every and shape.replays % every == 0:
            expected = work()
            if not self._same(expected, result):
                self._give_up(shape, "a replay had other bits than the launch")
                return expected
        shape.move(State.CAPTURED)
        return result

    def _try_capture(self, shape: _Shape[Outputs], work: Callable[[], Outputs], expected: Outputs) -> None:
        """Capture, after `work` has just run; that launch counts as the capture's, or as eager where there is none."""
        if not self._make_room(shape.bytes_needed):
            if shape.state is not State.OVER_BUDGET:
                shape.move(State.OVER_BUDGET)
            shape.eager += 1
            return
        shape.move(State.CAPTURING)
        try:
            shape.capture = self._capture(work)
            faithful = self._same(expected, shape.capture.replay())
        except Exception as error:  # noqa: BLE001 - whatever a library says to being recorded
            self._give_up(shape, f"{type(error).__name__}: {error}".splitlines()[0][:200])
            shape.eager += 1
            return
        shape.captures += 1
        shape.bytes_needed = shape.capture.nbytes
        if not faithful:
            self._give_up(shape, "a replay had other bits than the launch")
        elif self._bytes() > self._policy.bytes_max:
            self._drop(shape)
            shape.move(State.OVER_BUDGET)
        else:
            shape.captured_at = shape.used_at = self._launches
            shape.move(State.CAPTURED)

    def _make_room(self, nbytes: int) -> bool:
        """Whether there is room for one more capture of so many bytes, after old ones have gone. Changes nothing if not."""
        live, policy = self._live(), self._policy
        going: list[_Shape[Outputs]] = []
        old = [each for each in live if self._launches - each.captured_at >= policy.residency_launches]
        old.sort(key=lambda each: each.used_at, reverse=True)
        free = policy.bytes_max - self._bytes()
        while len(live) - len(going) >= policy.captures_max or nbytes > free:
            if not old:
                return False
            going.append(old.pop())
            free += going[-1].bytes_needed
        for each in going:
            self._cool(each)
        return True

    def _live(self) -> list[_Shape[Outputs]]:
        return [each for each in self._shapes.values() if each.capture is not None]

    def _bytes(self) -> int:
        return sum(each.capture.nbytes for each in self._live() if each.capture is not None)

    def _give_up(self, shape: _Shape[Outputs], reason: str) -> None:
        self._drop(shape)
        shape.reason = reason
        shape.move(State.UNCAPTURABLE)

    def _cool(self, shape: _Shape[Outputs]) -> None:
        self._drop(shape)
        shape.reason, shape.seen = "", 0
        shape.move(State.COLD)

    def _drop(self, shape: _Shape[Outputs]) -> None:
        if shape.capture is not None:
            shape.capture.close()
            shape.capture = None
