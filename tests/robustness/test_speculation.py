"""There is no speculative decoding: whoever asks for it is told, and never gets it half-applied.

So no draft can change a text, skip a bias or a schema, or leave a seat taken; the reports of that kind (BB-052, BB-053, BB-055, BB-056)
are answered here by the refusal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.robustness.routes import ROUTES, serving_small
from tripower.api.cli.program import main
from tripower.runtime.configuration.load import InvalidSettings, load_configuration

CHOICES = [
    {"prediction": {"type": "content", "content": "Hello"}},  # OpenAI
    {"speculative.n_max": 16},  # llama-server
    {"speculative.n_min": 4},
    {"speculative.p_min": 0.5},
    {"draft_model": "toy"},  # LM Studio
]


# BB-052, BB-053, BB-055, BB-056
@pytest.mark.parametrize("asked", CHOICES, ids=lambda asked: next(iter(asked)))
@pytest.mark.parametrize("route", ROUTES[:2], ids=["chat", "completions"])
async def test_a_request_for_a_draft_is_refused_by_name(route: Any, asked: dict[str, Any]) -> None:
    together: list[dict[str, Any]] = [
        {},
        {"logit_bias": {"97": -100}, "min_p": 0.9},
        {"response_format": {"type": "json_object"}},
        {"temperature": 0},
    ]
    async with serving_small() as server:
        for beside in together:
            for stream in (False, True):
                answer = await server.ask(route.path, route.body(stream=stream, **asked, **beside))
                error = route.error(answer)
                assert (answer.status, error["code"]) == (400, "unsupported_parameter")
                assert error["param"] == next(iter(asked))
        assert server.actors.active() == 0
        assert (await server.ask(route.path, route.body(temperature=0))).status == 200


# BB-052
@pytest.mark.parametrize("asked", [{"speculative.n_max": 0}, {"prediction": None}, {"draft_model": None}])
async def test_asking_for_none_is_no_fault_and_changes_nothing(asked: dict[str, Any]) -> None:
    route = ROUTES[0]
    async with serving_small() as server:
        plain = await server.ask(route.path, route.body(temperature=0))
        answer = await server.ask(route.path, route.body(temperature=0, **asked))
    assert answer.json["choices"] == plain.json["choices"]
    assert "x-tripower-ignored" not in answer.headers


# BB-052
@pytest.mark.parametrize("path", ["speculation.draft", "engine.draft_model", "engine.speculative_tokens"])
def test_a_setting_for_a_draft_is_unknown(path: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load_configuration(file=None, environment={}, flags={path: "toy"})
    assert path in str(caught.value)


@pytest.mark.parametrize("option", ["--draft", "--draft-model", "--speculative-config"])
def test_an_option_for_a_draft_is_bad_usage(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # BB-052
    assert main(["serve", "toy", option, "toy"]) == 2
    assert option in capsys.readouterr().err
