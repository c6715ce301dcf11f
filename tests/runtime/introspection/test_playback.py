"""Stepping through a recording: who handled what, and what waited where."""

from __future__ import annotations

from typing import Any

import pytest

from tripower.runtime.introspection.playback import ActorMoment, Playback
from tripower.runtime.introspection.recording import ActorPlace, Beginning, Ending, FlightRecording, Noted, Passed, Record
from tripower.runtime.kernel import InvalidRequest

PLACES = (
    ActorPlace("queue", "Queue", "system", "idle"),
    ActorPlace("system", "System", "", "idle"),
)


def passed(number: int, receiver: str, sent: float, started: float | None, ended: float, **changes: Any) -> Passed:
    words: dict[str, Any] = {"kind": "tell", "message": f"M{number}", "outcome": "taken", "sender": "caller", **changes}
    return Passed(number=number, receiver=receiver, sent=sent, started=started, ended=ended, **words)


def playback(*records: Record, held: tuple[Passed, ...] = ()) -> Playback:
    beginning = Beginning(version="1", pid=1, at="", clock=100.0, now=100.0, actors=PLACES[:1])
    ending = Ending(records=len(records), now=110.0, actors=PLACES, held=held)
    return Playback(FlightRecording(beginning=beginning, records=records, ending=ending))


def at(player: Playback, number: int) -> dict[str, ActorMoment]:
    return {actor.name: actor for actor in player.moment(player.index_of(number)).actors}


def test_the_message_is_in_hand_and_those_behind_it_wait() -> None:
    player = playback(
        passed(7, "queue", 101, 102, 103),
        passed(8, "queue", 101.5, 103, 104),
        passed(9, "queue", 103.5, 104, 105),
        passed(10, "system", 102, 102, 106),
        held=(passed(0, "queue", 102.5, None, 110, outcome="queued", kind="control"),),
    )
    moment = player.moment(0)
    assert (moment.number, moment.first, moment.last, moment.at) == (7, 7, 10, 3.0)
    assert (moment.waited, moment.handled) == (1, 1)
    assert [actor.name for actor in moment.actors] == ["system", "queue"]
    queue, system = at(player, 7)["queue"], at(player, 7)["system"]
    assert (queue.handling, queue.handling_seconds, queue.inbox, queue.control) == ("M7", 1.0, 1, 1)
    assert (system.handling, system.handling_seconds) == ("M10", 1.0)
    assert at(player, 8)["queue"].inbox == 1
    assert at(player, 10)["queue"].handling == "" and at(player, 10)["queue"].inbox == 0


def test_asks_that_are_answered_later_are_pending_until_they_are() -> None:
    player = playback(
        passed(1, "queue", 100, 101, 101, kind="ask", outcome="later"),
        passed(2, "queue", 100, 102, 102),
        passed(3, "queue", 101, None, 103, kind="answer", outcome="answered"),
        passed(4, "queue", 103, 104, 104),
        held=(passed(0, "queue", 103.5, None, 110, kind="answer", outcome="later"),),
    )
    assert [at(player, number)["queue"].pending for number in (2, 4)] == [1, 1]
    assert at(player, 1)["queue"].handling == "M1"
    assert at(player, 2)["queue"].inbox == 0


def test_crashes_are_counted_and_actors_that_came_and_went_are_shown() -> None:
    player = playback(
        passed(1, "visitor", 100, 101, 101),
        Noted(2, 102.0, "visitor", {"type": "crashed", "actor": "visitor", "error": "RuntimeError"}),
        passed(3, "visitor", 103, 103, 103),
    )
    assert [at(player, number)["visitor"].crashes for number in (1, 3)] == [0, 1]
    assert at(player, 1)["visitor"].parent == ""


def test_a_number_that_is_not_there_is_refused_with_those_that_are() -> None:
    player = playback(passed(7, "queue", 101, 102, 103), passed(9, "queue", 101, 103, 104))
    for number in (0, 6, 8, 10):
        with pytest.raises(InvalidRequest, match=f"#{number} is not in this recording: it begins at #7 and ends at #9"):
            player.index_of(number)
    with pytest.raises(InvalidRequest, match="it is empty"):
        playback().index_of(1)


def test_a_filter_finds_the_next_record_in_either_direction() -> None:
    player = playback(*(passed(number, receiver, 100, 100, 100) for number, receiver in enumerate("aXbXc", 1)))
    assert player.matching("-> x", 0) == 1
    assert player.matching("-> X", 2) == 3
    assert player.matching("-> X", 2, -1) == 1
    assert player.matching("nothing", 0) is None
    assert player.matching("", 5) is None
