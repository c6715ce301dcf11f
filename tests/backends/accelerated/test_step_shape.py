"""Which class a step falls into, and that a class has room for whatever falls into it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.backends.picolm.accelerated.step_shape import GroupShape, Segment, ShapeRules, StepShape, padded

RULES = ShapeRules(windows=(0, 100), page_positions=64, pages_max=40, sequences_max=12)


@pytest.mark.parametrize(
    ("count", "most", "expected"), [(1, 12, 1), (2, 12, 2), (3, 12, 4), (8, 12, 8), (9, 12, 12), (12, 12, 12), (1, 1, 1)]
)
def test_counts_are_padded_to_powers_of_two_and_no_further_than_there_are(count: int, most: int, expected: int) -> None:
    assert padded(count, most) == expected


def test_a_decode_step_is_one_group_of_its_class() -> None:
    segments = [Segment(sequence, position, (7,)) for sequence, position in enumerate((0, 63, 300))]
    shape, members = RULES.shape(segments, 3)
    assert shape == StepShape((GroupShape(4, 1, (8, 3)),), 4, decode=True)
    assert members == [[0, 1, 2]]


def test_a_decode_step_that_draws_nothing_computes_no_logits() -> None:
    shape, _ = RULES.shape([Segment(0, 5, (7,))], 0)
    assert shape.drawn == 0 and shape.decode


def test_prompts_have_groups_of_their_own_beside_the_streams() -> None:
    segments = [Segment(0, 10, (1,)), Segment(1, 0, (1,) * 130), Segment(2, 70, (1,)), Segment(3, 0, (1, 2))]
    shape, members = RULES.shape(segments, 2)
    assert members == [[0, 2], [1], [3]]
    assert shape == StepShape((GroupShape(2, 1, (2, 2)), GroupShape(1, 130, (3, 3)), GroupShape(1, 2, (1, 1))), 2, decode=False)
    assert shape.rows == 2 + 130 + 2


def test_names_tell_the_shapes_of_decode_steps_apart() -> None:
    shapes = {
        RULES.shape([Segment(index, position, (1,)) for index in range(count)], drawn)[0]
        for count in range(1, 13)
        for position in range(0, 2560, 40)
        for drawn in (0, count)
    }
    assert len({str(shape) for shape in shapes}) == len(shapes)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2500), st.integers(1, 60)), min_size=1, max_size=12), st.integers(0, 2600))
def test_every_page_that_a_row_sees_has_room_in_the_shape(steps: list[tuple[int, int]], window: int) -> None:
    rules = ShapeRules(windows=(window,), page_positions=64, pages_max=40, sequences_max=12)
    segments = [Segment(index, position, (1,) * rows) for index, (position, rows) in enumerate(steps)]
    shape, members = rules.shape(segments, 1)
    for group, indices in zip(shape.groups, members, strict=True):
        assert len(indices) <= group.sequences
        for index in indices:
            last = (segments[index].end - 1) // 64
            assert last - rules.first_page(segments[index].position, window) + 1 <= group.pages[0] <= 40
