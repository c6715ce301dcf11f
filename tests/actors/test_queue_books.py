"""Whom a queue has served, and how: figures that are kept for whoever looks, within bounds."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tripower.actors.dialogue import Timings
from tripower.actors.queue_books import ANSWERS_KEPT, LABELS_KEPT, QueueBooks, SeatBooks
from tripower.actors.queueing import IdentityStatistics
from tripower.runtime.admission import Caller, Gate

ADA, BOB = Caller(identity="k1", name="Ada", alone=False), Caller(identity="k2", alone=False)


def books() -> QueueBooks:
    return QueueBooks("m", 2, Gate(active_limit=2, waiting_limit=4))


def emitted(queue: QueueBooks) -> int:
    return queue.statistics(live=0, step_running=False, batch=SeatBooks(2).statistics(), emitting=5).emitted_tokens


def test_tokens_are_counted_by_label_whether_requests_are_gone_or_run() -> None:
    queue = books()
    queue.arrive(now=0.0, deadline=10.0, caller=ADA)
    queue.arrive(now=0.0, deadline=10.0, caller=ADA)
    queue.count_emitted(BOB, 7)
    queue.count_emitted(ADA, 3)
    queue.count_emitted(ADA, 0)
    assert {each.label: each for each in queue.identities([(ADA, 4), (ADA, 1)])} == {
        "k1 (Ada)": IdentityStatistics("k1 (Ada)", 1, 1, 8),
        "k2": IdentityStatistics("k2", 0, 0, 7),
    }
    assert emitted(queue) == 15


def test_of_very_many_identities_the_latest_are_remembered_and_no_token_is_lost() -> None:
    queue = books()
    queue.count_emitted(ADA, 1)
    for number in range(LABELS_KEPT):
        queue.count_emitted(Caller(identity=f"n{number}"), 1)
        queue.count_emitted(BOB, 1)
    labels = [identity.label for identity in queue.identities()]
    assert len(labels) == LABELS_KEPT and ADA.label not in labels and BOB.label in labels
    assert emitted(queue) == 1 + 2 * LABELS_KEPT + 5


async def test_the_latest_answers_are_kept(autojump_clock: trio.testing.MockClock) -> None:
    queue = books()
    for tokens in (11, 1, 0):
        await trio.sleep(1)
        queue.count_answer(Timings(0.5, 0.25, 2.0), tokens)
    assert [answer.at for answer in queue.answers] == pytest.approx([1, 2, 3])
    assert [answer.first_token for answer in queue.answers] == [0.75] * 3
    assert [answer.token_interval for answer in queue.answers] == [0.2, None, None]
    for _ in range(ANSWERS_KEPT):
        queue.count_answer(Timings(0.0, 0.0, 0.0), 2)
    assert len(queue.answers) == ANSWERS_KEPT and queue.answers[0].first_token == 0.0
