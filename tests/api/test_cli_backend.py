"""`--backend`, and models of another server, from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.children import running, tripower
from tripower.api.cli import exit_codes

TEN = ("Hello", "--max-tokens", "10", "--temperature", "0", "--json")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the toy."""
    with running(tmp_path_factory.mktemp("upstream"), "serve", "toy", "--port", "0") as child:
        url = next(word for word in child.read_until("listens at").split() if word.startswith("http"))
        yield f"{url}/v1"


def test_a_model_of_another_server_answers_as_it_does_there(upstream: str, tmp_path: Path) -> None:
    here = json.loads(tripower(tmp_path, "run", "toy", *TEN).stdout)
    for arguments in ((f"proxy:{upstream}#toy",), ("--backend", "proxy", f"far={upstream}")):
        there = json.loads(tripower(tmp_path, "run", *arguments, *TEN).stdout)
        assert (there["text"], there["tokens"], there["prompt_tokens"]) == (here["text"], 10, here["prompt_tokens"])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("toy", "--backend", "nope"), exit_codes.USAGE, "one of auto, picolm"),
        (("toy", "--backend", "picolm"), exit_codes.REFUSED, "leave out --backend"),
        (("smollm2", "--backend", "proxy"), exit_codes.REFUSED, "proxy:https://"),
        (("proxy:http://host/v1#m",), exit_codes.REFUSED, "proxy.allow_plain"),
        (("proxy:http://127.0.0.1:1/v1#m",), exit_codes.REFUSED, "does not answer"),
        (("toy", "--set", "engine.gpu_layers=1"), exit_codes.REFUSED, "set it to 0"),
    ],
)
def test_what_cannot_be_is_said_with_the_cure(arguments: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    finished = tripower(tmp_path, "run", *arguments, "Hello")
    assert says in finished.stderr and finished.returncode == code and finished.stdout == ""


def test_a_field_that_not_every_server_knows_is_refused_unless_it_is_named(upstream: str, tmp_path: Path) -> None:
    asking = ("run", f"proxy:{upstream}#toy", "Hello", "--min-p", "0.1", "--max-tokens", "3")
    refused = tripower(tmp_path, *asking)
    assert refused.returncode == exit_codes.REFUSED and "does not honour min_p" in refused.stderr
    assert tripower(tmp_path, *asking, "--set", "proxy.extensions=min_p").returncode == exit_codes.OK
