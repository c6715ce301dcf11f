"""Messages are plain frozen data: encoded, printed, replayed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.kernel import Ask, Message, Stop, decode, encode


class Placed(Message, frozen=True):
    place: int


class Place(Ask[Placed], frozen=True):
    name: str
    weights: tuple[float, ...] = ()
    note: str | None = None


Any = Placed | Place | Stop


def test_the_tag_is_the_name_of_the_class() -> None:
    assert encode(Place("a")) == b'{"type":"Place","name":"a","weights":[],"note":null}'
    assert encode(Stop()) == b'{"type":"Stop"}'


@settings(deadline=None)
@given(
    st.one_of(
        st.builds(Placed, st.integers(-(2**63), 2**63)),
        st.builds(
            Place, st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple), st.none() | st.text()
        ),
    )
)
def test_a_message_survives_the_way_through_json(message: Placed | Place) -> None:
    assert decode(encode(message), Any) == message


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"Placed","place":1,"more":2}',
        b'{"type":"Placed"}',
        b'{"type":"Unheard"}',
        b'{"place":1}',
        b'{"type":"Placed","place":"one"}',
        b"{",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data, Any)


def test_messages_cannot_be_changed_and_are_equal_by_value() -> None:
    message = Place("a")
    with pytest.raises(AttributeError):
        message.name = "b"  # type: ignore[misc]
    assert message == Place("a") and len({message, Place("a"), Place("b")}) == 2
