"""The one rule for the names of tools."""

from __future__ import annotations

import pytest

from tripower.runtime.engine.tool_names import check_tool_name
from tripower.runtime.kernel import InvalidRequest


@pytest.mark.parametrize("name", ["f", "get_weather", "get-weather", "A1", "a" * 64])
def test_a_name_of_plain_letters_may_be_called(name: str) -> None:
    check_tool_name(name, "tools[0].name")


@pytest.mark.parametrize("name", ["", "a b", "server.tool", "a:b", "é", "f\n", "a" * 65, "<tool>"])
def test_any_other_name_is_refused_with_its_place_and_the_rule(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_tool_name(name, "tools[0].name")
    assert caught.value.param == "tools[0].name"
    assert caught.value.message.endswith("use 1 to 64 letters of a-z and A-Z, digits, _ and -")
