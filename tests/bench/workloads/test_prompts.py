"""The workloads of the benches of speculation and prefixes."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from tripower.bench.workloads import workloads
from tripower.bench.workloads.prompts import REPETITIVE


def test_each_kind_of_work_has_a_dozen_prompts_and_a_copy_stands_alone() -> None:
    counts = {work: len(prompts) for work, prompts in workloads().items()}
    assert counts == {"edit": 12, "quote": 12, "code": 12, "json": 12, "chat": 12, "translate": 12, "high-acceptance": 1}
    assert set(REPETITIVE) < set(counts)


def test_no_prompt_is_there_twice() -> None:
    prompts = list(chain.from_iterable(workloads().values()))
    assert len({prompt.message for prompt in prompts}) == len({prompt.plain for prompt in prompts}) == len(prompts)
    for each in workloads().values():
        assert len({prompt.name for prompt in each}) == len(each)


@pytest.mark.parametrize("work", ["edit", "quote", "code", "json", "translate", "high-acceptance"])
def test_a_source_text_has_the_length_of_a_page_at_most(work: str) -> None:
    """In characters, some four of which are a token: 150 to 600 tokens."""
    for prompt in workloads()[work]:
        for form in (prompt.message, prompt.plain):
            assert 400 < len(form) < 2600, prompt.name


def test_what_an_edit_replaces_stands_in_the_text_more_than_once() -> None:
    for prompt in workloads()["edit"]:
        found = re.search(
            r"so that (?:the (?:name|word|town of) |the )?(.+?) (?:is|are) (?:replaced by|renamed) ", prompt.message
        )
        assert found is not None, prompt.message
        text = prompt.message[: found.start()].lower()
        assert text.count(found[1].lower()) >= 2, found[1]


def test_plain_forms_end_where_the_answer_begins() -> None:
    ends = {work: {prompt.plain[-1] for prompt in prompts} for work, prompts in workloads().items()}
    assert ends["json"] == {":"} and ends["chat"] == {":"} and ends["quote"] == {'"'}
    assert ends["edit"] == ends["translate"] == {"\n"}
    assert not any(end.isspace() for end in ends["code"] | ends["high-acceptance"])
