"""A second model that guesses: whatever it is worth, answers keep every bit, and its states end with the sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.native.engine.constrained import Member, answers_of
from tests.backends.native.engine.rigs import GREEDY, SAMPLED, build_engine, logits_alone, new_table, same_bits, tokens_of
from tests.backends.native.engine.test_speculation import BANNED, BIASED, COUNTING, ENDS, PLAIN_SAMPLED, alone, continued, run
from tripower.backends.picolm.native.drafts import StepDrafts
from tripower.backends.picolm.native.engine import NativeEngine
from tripower.backends.picolm.native.stepwise import Stepwise
from tripower.runtime.engine import StepTable
from tripower.runtime.engine.row_costs import RowCosts, costs_of
from tripower.runtime.speculation import (
    DraftedEngine,
    DraftModel,
    FixedDrafter,
    ModelDrafter,
    ModelSource,
    SpeculationSettings,
    Strategy,
    make_model_drafter,
)

PROMPT = tuple(tokens_of(5, 20))
NEARLY_FREE = 0.001


class Pair(msgspec.Struct, frozen=True):
    """A target, a draft of which the target may be a twin, and both as one."""

    target: NativeEngine
    guessing: NativeEngine
    engine: DraftedEngine
    pages: int
    """Of the draft, free while no sequence is open."""

    def drafter(self, member: Member, width: int) -> FixedDrafter:
        return FixedDrafter(ModelSource(self.engine.draft, member.prompt, member.sampling), width_max=width)

    def close_all(self) -> None:
        for sequence in self.engine.sequences():
            self.engine.close_sequence(sequence)
        assert not self.guessing.sequences()
        assert self.guessing.pages_free == self.pages


@pytest.fixture(scope="module")
def pairs(tiny_model: Any) -> Iterator[dict[str, Pair]]:
    """`twin`: a draft that is its target; `other`: one layer less, other weights, and often right by chance of a small vocabulary."""
    path = tiny_model("llama", layers=2)
    made = {}
    for name, draft_path in (("twin", path), ("other", tiny_model("llama", layers=1, seed=3))):
        target = build_engine(path, threads=1, slots_max=4, sequences_max=8)
        guessing = build_engine(draft_path, threads=1, slots_max=4, sequences_max=8)
        engine = DraftedEngine(target, DraftModel(guessing, step_cost=NEARLY_FREE))
        made[name] = Pair(target, guessing, engine, guessing.pages_free)
    yield made
    for pair in made.values():
        pair.engine.close()


MEMBERS = st.builds(
    Member,
    prompt=st.builds(lambda seed, length: tuple(tokens_of(seed, length)), st.integers(0, 3), st.integers(1, 30)),
    remaining=st.integers(0, 20),
    sampling=st.sampled_from([GREEDY, PLAIN_SAMPLED, SAMPLED, BIASED, COUNTING, BANNED]),
    constraint=st.sampled_from([None, None, 1, 2]),
    logprobs=st.sampled_from([-1, -1, 0, 3]),
    prompt_logprobs=st.sampled_from([-1, -1, 2]),
    ends=st.sampled_from([frozenset[int](), ENDS]),
)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(["twin", "other"]),
    members=st.lists(st.tuples(MEMBERS, st.integers(0, 16)), min_size=1, max_size=4),
    limits=st.sampled_from([{}, {"rows_max": 9}, {"rows_max": 20, "mixed_rows": 3}, {"rows_max": 4}]),
)
def test_whatever_guesses_and_whoever_asks_everybody_has_the_bits_of_plain_decoding(
    pairs: dict[str, Pair], name: str, members: list[tuple[Member, int]], limits: dict[str, Any]
) -> None:
    pair = pairs[name]
    expected = [alone(pair.target, member) for member, _ in members]
    drafters = [pair.drafter(member, width) if width else None for member, width in members]
    table = run(pair.engine, [member for member, _ in members], drafters, **limits)  # type: ignore[arg-type]
    assert answers_of(table) == expected
    if name == "twin":
        for slot, (member, _) in enumerate(members):
            if member.constraint is None:  # only a mask, which the draft is not told of, makes it wrong
                proposed = sum(each.get(slot, 0) for each in table.proposed.values())
                assert proposed == sum(len(each.get(slot, ())) for each in table.runs.values())
    pair.close_all()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_draft_that_is_its_target_is_right_every_time(pairs: dict[str, Pair], sampling: Any) -> None:
    pair, member = pairs["twin"], Member(prompt=PROMPT, remaining=21, sampling=sampling)
    drawn = alone(pair.target, member).drawn
    table = run(pair.engine, [member], [pair.drafter(member, 4)])  # type: ignore[arg-type]
    assert answers_of(table)[0].drawn == drawn
    assert table.steps_done == 1 + 4
    assert pair.guessing.length(0) == len(PROMPT) + 20 - 1  # all but the answer's last two tokens, which nobody has asked for
    pair.close_all()


def job(engine: DraftedEngine, before: StepTable, leaving: int, steps: int) -> StepTable:
    """A job for those whose answers are not complete; who leaves is closed, as by the lane when nobody keeps it."""
    engine.close_sequence(leaving)
    slots = [
        {
            "sequence": int(before.sequence[slot]), "pending": before.pending[slot], "remaining": int(before.remaining[slot]),
            "output_index": int(before.output_index[slot]), "sampling": before.sampling[slot],
            "history": before.history[slot], "prompt_length": before.prompt_length[slot], "drafter": before.drafter[slot],
            "constraint": before.constraint[slot], "logprobs": before.logprobs[slot],
        }
        for slot in range(before.slots)
        if before.pending[slot] and int(before.sequence[slot]) != leaving
    ]  # fmt: skip
    return new_table(engine, *slots, steps=steps, rows_max=24)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(["twin", "other"]),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
    constraint=st.sampled_from([None, 4]),
    cuts=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 1, 2, 9, 9])), max_size=5),
    width=st.integers(1, 8),
)
def test_jobs_cut_anywhere_and_members_that_leave_change_nobodys_bits(
    pairs: dict[str, Pair], name: str, sampling: Any, constraint: int | None, cuts: list[tuple[int, int]], width: int
) -> None:
    pair = pairs[name]
    members = [
        Member(prompt=PROMPT[slot : slot + 6], remaining=16, sampling=sampling, constraint=constraint, logprobs=slot - 1)
        for slot in range(3)
    ]
    expected = [alone(pair.target, member).drawn for member in members]
    for sequence in range(3):
        pair.engine.open_sequence(sequence)
    table = new_table(pair.engine, *(member.slot(drafter=pair.drafter(member, width)) for member in members), steps=3)
    said: dict[int, list[int]] = {0: [], 1: [], 2: []}
    gone = set()
    while table.slots:
        for _ in pair.engine.run(table):
            pass
        for slot, answer in enumerate(answers_of(table)):
            said[int(table.sequence[slot])] += answer.drawn
        steps, leaving = cuts.pop() if cuts else (64, 9)
        gone.add(leaving)
        table = job(pair.engine, table, leaving, steps)
    for sequence, drawn in said.items():
        assert drawn == expected[sequence][: len(drawn)] and (sequence in gone or len(drawn) == 16)
    pair.close_all()


@settings(deadline=None, max_examples=20)
@given(
    name=st.sampled_from(["twin", "other"]),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
    constraint=st.sampled_from([None, 4]),
    step=st.integers(0, 6),
    where=st.sampled_from(["walk", "_reports", "put", "guess"]),
    width=st.integers(1, 8),
)
def test_a_step_or_a_draft_that_fails_anywhere_leaves_the_next_job_the_same_bits(
    pairs: dict[str, Pair], name: str, sampling: Any, constraint: int | None, step: int, where: str, width: int
) -> None:
    pair, member = pairs[name], Member(prompt=PROMPT, remaining=16, sampling=sampling, constraint=constraint, logprobs=1)
    expected = alone(pair.target, member)
    pair.engine.open_sequence(0)
    table = new_table(pair.engine, member.slot(drafter=pair.drafter(member, width)))
    owner: Any = {"_reports": Stepwise, "guess": DraftModel}.get(where, StepDrafts)
    real, calls = getattr(owner, where), []

    def failing(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        result = real(*arguments, **named)
        if len(calls) > step:
            raise RuntimeError("cut here")
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, where, failing)
        try:
            for _ in pair.engine.run(table):
                pass
        except RuntimeError:
            assert where != "guess"
    first = answers_of(table)[0].drawn
    assert first == expected.drawn[: len(first)]
    rest = answers_of(continued(pair.engine, table, steps=32))[0].drawn if table.pending[0] else []  # type: ignore[arg-type]
    assert first + rest == expected.drawn
    assert same_bits(pair.target.logits(0, [1]), logits_alone(pair.target, [*PROMPT, *expected.drawn[:-1], 1])[-1:])
    pair.close_all()


def test_a_plain_neighbour_is_not_slowed_by_more_than_a_twentieth_by_a_draft(tiny_model: Any) -> None:
    path = tiny_model("llama", layers=2)
    target = build_engine(path, row_costs=(1.0, 1.2, 1.6, 2.4, 4.4))
    engine = DraftedEngine(target, DraftModel(build_engine(tiny_model("llama", layers=1, seed=3)), step_cost=0.2))
    costs = RowCosts(target.info.row_costs)
    members = [Member(prompt=PROMPT[slot : slot + 2], remaining=60, sampling=GREEDY) for slot in range(2)]
    drafter = FixedDrafter(ModelSource(engine.draft, members[0].prompt, GREEDY), width_max=8)
    table = run(engine, members, [drafter, None])  # type: ignore[arg-type]
    sat = [step for step in range(1, table.steps_done) if table.evaluated[step, :2].all()]
    guessed = [table.proposed.get(step, {}).get(0, 0) for step in sat]
    cost = sum(costs.step(2 + count) + 0.2 * count for count in guessed)
    assert sum(guessed) > 0 and cost <= 1.06 * costs.step(2) * len(sat)
    engine.close()


@pytest.mark.long
@pytest.mark.parametrize("sampling", [GREEDY, msgspec.structs.replace(SAMPLED, temperature=0.6)])
def test_a_real_model_that_guesses_for_itself_says_what_it_would_have_said(smollm2_path: Path, sampling: Any) -> None:
    options: dict[str, Any] = {"threads": 2, "slots_max": 3, "sequences_max": 3, "context": 400}
    target, guessing = build_engine(smollm2_path, **options), build_engine(smollm2_path, **options)
    engine = DraftedEngine(target, DraftModel(guessing, step_cost=NEARLY_FREE))
    members = [
        Member(prompt=tuple(range(2000 + 40 * slot, 2040 + 40 * slot)), remaining=40, sampling=sampling, logprobs=slot - 1)
        for slot in range(2)
    ]
    expected = [alone(target, member) for member in members]
    how = SpeculationSettings(strategy=Strategy.DRAFT_MODEL)
    for settings_, width in ((how, 4), (msgspec.structs.replace(how, adaptive=False, draft_max=8), 8)):
        drafters = [
            make_model_drafter(settings_, member.prompt, costs_of(target.info.row_costs), engine.draft, sampling)
            for member in members
        ]
        assert isinstance(drafters[0], ModelDrafter if width == 4 else FixedDrafter)
        table = run(engine, members, drafters, steps=64)  # type: ignore[arg-type]
        assert answers_of(table) == expected
        proposed = sum(sum(each.values()) for each in table.proposed.values())
        assert proposed == sum(len(run_) for each in table.runs.values() for run_ in each.values()) > 20
    engine.close()
