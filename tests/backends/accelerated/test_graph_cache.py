"""States, room and accounts of captures, with captures that are only counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.picolm.accelerated.graph_cache import TRANSITIONS, CapturePolicy, GraphCache, State


class Recording:
    """A capture whose replays give what its work gave, unless it is spoilt."""

    live = 0

    def __init__(self, work: Callable[[], int], nbytes: int, closed: list[int]) -> None:
        self.nbytes, self._output, self._closed = nbytes, work(), closed
        self.spoilt = False

    def replay(self) -> int:
        return self._output + self.spoilt

    def close(self) -> None:
        self._closed.append(self._output)


class Rig:
    """A cache with captures of `nbytes` each; `made` are the captures so far, `closed` the outputs of those given up."""

    def __init__(self, *, nbytes: int = 100, **policy: int) -> None:
        self.made: list[Recording] = []
        self.closed: list[int] = []
        self.ran = 0
        self.failing: Exception | None = None
        self._nbytes = nbytes
        self.cache: GraphCache[int] = GraphCache(self._capture, lambda left, right: left == right, CapturePolicy(**policy))

    def _capture(self, work: Callable[[], int]) -> Recording:
        if self.failing is not None:
            raise self.failing
        self.made.append(Recording(work, self._nbytes, self.closed))
        return self.made[-1]

    def launch(self, key: int, never: str = "") -> int:
        def work() -> int:
            self.ran += 1
            return key * 10

        return self.cache.launch(key, work, never=never)

    def state(self, key: int) -> str:
        return self.cache.statistics().shapes[str(key)].state


def test_a_shape_is_launched_twice_then_captured_then_replayed() -> None:
    rig = Rig()
    states = []
    for _ in range(4):
        assert rig.launch(1) == 10
        states.append(rig.state(1))
    assert states == ["counting", "counting", "captured", "captured"]
    assert rig.ran == 4  # three launches, and once to record


def test_a_hundred_equal_launches_are_one_capture_and_97_replays() -> None:
    rig = Rig()
    for _ in range(100):
        rig.launch(1)
    found = rig.cache.statistics()
    assert (found.eager, found.captures, found.replays, found.variants) == (2, 1, 97, 1)
    assert (found.reuse_bps, found.singleton_bps, found.nbytes) == (9_700, 0, 100)


def test_shapes_are_counted_apart() -> None:
    rig = Rig(capture_after=3)
    for key in (1, 2, 1, 2, 1, 2, 1):
        rig.launch(key)
    assert (rig.state(1), rig.state(2)) == ("captured", "counting")


def test_more_shapes_than_room_run_eagerly_and_memory_does_not_grow() -> None:
    rig = Rig(captures_max=4, residency_launches=10_000)
    for _ in range(10):
        for key in range(50):
            rig.launch(key)
    found = rig.cache.statistics()
    assert (found.variants, found.nbytes, found.captures, found.over_budget) == (4, 400, 4, 46)
    assert found.eager + found.captures + found.replays == 500


def test_two_shapes_that_take_turns_do_not_capture_each_other_away() -> None:
    rig = Rig(captures_max=1, residency_launches=50)
    for _ in range(500):
        rig.launch(1)
        rig.launch(2)
    assert len(rig.made) <= 1000 / 50 + 1
    assert rig.cache.statistics().variants == 1


def test_the_one_not_used_for_longest_makes_room_once_it_is_old_enough() -> None:
    rig = Rig(captures_max=2, residency_launches=5)
    for key in (1, 1, 1, 2, 2, 2, 2, 2, 1):
        rig.launch(key)
    for _ in range(3):
        rig.launch(3)
    assert [rig.state(key) for key in (1, 2, 3)] == ["captured", "cold", "captured"]
    assert rig.closed == [20]


def test_a_capture_too_large_for_the_budget_is_given_up_and_not_tried_again() -> None:
    rig = Rig(nbytes=300, bytes_max=200)
    for _ in range(20):
        assert rig.launch(1) == 10
    assert rig.state(1) == "over-budget"
    assert (len(rig.made), rig.closed, rig.cache.statistics().nbytes) == (1, [10], 0)


def test_bytes_make_room_as_captures_do() -> None:
    rig = Rig(nbytes=100, bytes_max=250, residency_launches=1)
    for key in (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3):
        rig.launch(key)
    found = rig.cache.statistics()
    assert found.nbytes <= 250 and found.variants == 2
    assert rig.state(3) == "captured"


def test_a_failed_capture_names_its_reason_and_is_not_tried_again() -> None:
    rig = Rig()
    rig.failing = RuntimeError("operation not permitted when stream is capturing\nand a second line")
    for _ in range(10):
        assert rig.launch(1) == 10
    shape = rig.cache.statistics().shapes["1"]
    assert (shape.state, shape.eager, shape.captures) == ("uncapturable", 10, 0)
    assert shape.reason == "RuntimeError: operation not permitted when stream is capturing"
    rig.failing = None
    rig.launch(1)
    assert rig.made == []


def test_a_capture_with_other_bits_is_never_used() -> None:
    rig = Rig()
    rig.cache._same = lambda left, right: False
    for _ in range(5):
        assert rig.launch(1) == 10
    assert rig.state(1) == "uncapturable" and rig.closed == [10]
    assert "other bits" in rig.cache.statistics().shapes["1"].reason


def test_an_audit_finds_a_replay_that_went_wrong_and_returns_the_launch() -> None:
    rig = Rig(audit_every=4)
    for _ in range(3):
        rig.launch(1)
    rig.made[0].spoilt = True
    assert [rig.launch(1) for _ in range(5)] == [11, 11, 11, 10, 10]
    assert rig.state(1) == "uncapturable"


def test_a_replay_that_raises_passes_it_on_and_starts_again() -> None:
    rig = Rig()
    for _ in range(3):
        rig.launch(1)

    def fail() -> int:
        raise RuntimeError("device lost")

    rig.made[0].replay = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="device lost"):
        rig.launch(1)
    assert rig.state(1) == "cold" and rig.launch(1) == 10


def test_what_the_work_raises_passes_and_changes_no_state() -> None:
    rig = Rig()

    def fail() -> int:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            rig.cache.launch(7, fail)
    assert rig.state(7) == "cold"


def test_a_shape_that_must_not_be_captured_says_why() -> None:
    rig = Rig()
    for _ in range(5):
        rig.launch(1, never="graphs are off")
    shape = rig.cache.statistics().shapes["1"]
    assert (shape.state, shape.reason, shape.eager) == ("uncapturable", "graphs are off", 5)


def test_invalidation_gives_up_all_captures_and_keeps_the_accounts() -> None:
    rig = Rig()
    for key in (1, 1, 1, 1, 2):
        rig.launch(key)
    rig.cache.invalidate()
    found = rig.cache.statistics()
    assert (found.variants, found.nbytes, found.replays, rig.closed) == (0, 0, 1, [10])
    assert {shape.state for shape in found.shapes.values()} == {"cold"}
    rig.launch(1)
    assert rig.state(1) == "counting"


def test_every_state_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set().union(*TRANSITIONS.values()) == set(State)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 6) | st.just(-1), max_size=200),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 500),
    st.integers(0, 20),
)
def test_any_order_of_launches_keeps_the_bounds_and_the_accounts(
    keys: list[int], after: int, captures: int, nbytes: int, residency: int
) -> None:
    rig = Rig(capture_after=after, captures_max=captures, bytes_max=nbytes, residency_launches=residency)
    launches = 0
    for key in keys:
        if key < 0:
            rig.cache.invalidate()
            continue
        assert rig.launch(key) == key * 10
        launches += 1
        found = rig.cache.statistics()
        assert found.eager + found.captures + found.replays == launches
        assert found.variants <= captures and found.nbytes <= nbytes
        assert found.variants == len(rig.made) - len(rig.closed)
