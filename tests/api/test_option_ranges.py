"""The ranges of options are the same whichever way a request comes in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from tests.api.children import tripower
from tripower.actors.dialogue import GenerationRequest, SamplingChoices
from tripower.actors.request_checks import RANGES, check_request
from tripower.api.cli import exit_codes
from tripower.api.http.messages.requests import MessagesIn
from tripower.api.http.responses.requests import ResponseIn
from tripower.api.http.wire import CompletionIn, TextIn
from tripower.runtime.kernel import InvalidRequest

OF_HTTP_ALONE = {
    "top_k": (-1, RANGES["top_k"][1]),
    "temperature of MessagesIn": (0, 1),
    "max_tokens of MessagesIn": (1, RANGES["max_tokens"][1]),
}
"""-1 is another servers' word for all of them, and becomes 0; Anthropic's API has narrower ranges."""


def metas(annotation: Any) -> Iterator[msgspec.Meta]:
    yield from (each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, msgspec.Meta))
    for inner in get_args(annotation):
        yield from metas(inner)


@pytest.mark.parametrize("kind", [TextIn, CompletionIn, MessagesIn, ResponseIn])
def test_http_has_the_ranges_that_hold_everywhere(kind: type[msgspec.Struct]) -> None:
    hints = get_type_hints(kind, include_extras=True)
    compared = 0
    for name, expected in RANGES.items():
        bounds = [(meta.ge, meta.le) for meta in metas(hints.get(name)) if meta.ge is not None]
        if bounds:
            assert bounds == [OF_HTTP_ALONE.get(f"{name} of {kind.__name__}", OF_HTTP_ALONE.get(name, expected))], name
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("name", [name for name in RANGES if name != "logit_bias"])
def test_each_bound_is_taken_and_what_lies_behind_it_is_refused_by_name(name: str) -> None:
    for value, good in zip(
        (*RANGES[name], *(RANGES[name][0] - 1, RANGES[name][1] + 1)), (True, True, False, False), strict=True
    ):
        changed: dict[str, Any] = {name: value}
        if name in SamplingChoices.__struct_fields__:
            request = GenerationRequest(model="m", prompt="p", sampling=SamplingChoices(**changed))
        else:
            request = GenerationRequest(model="m", prompt="p", **changed)
        if good:
            check_request(request)
        else:
            with pytest.raises(InvalidRequest, match=f"^{name} is from ") as caught:
                check_request(request)
            assert caught.value.param == name


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--temperature", "9"), "--temperature: temperature is from 0 to 2, not 9.0"),
        (("--max-tokens", "-1"), "--max-tokens: max_tokens is from 0"),
        (("--stop", ""), "--stop: a stop string is empty"),
    ],
)
def test_the_command_line_refuses_it_before_a_model_is_looked_for(words: tuple[str, ...], says: str, tmp_path: Any) -> None:
    for command in (("run", "nowhere", "hi"), ("run", "nowhere", "hi", "--url", "http://127.0.0.1:9")):
        finished = tripower(tmp_path, *command, *words)
        assert finished.returncode == exit_codes.USAGE and says in finished.stderr and finished.stderr.count("\n") == 1
