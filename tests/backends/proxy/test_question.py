"""What is sent: what the caller said and nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tripower.backends.proxy.question import EXTENSIONS, abilities_with, body_of, endpoint, headers_of
from tripower.runtime.configuration.settings import PROXY_EXTENSIONS
from tripower.runtime.engine import ChatMessage, DelegateRequest, SamplingChoices
from tripower.runtime.kernel import InvalidRequest

ALWAYS = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def sent(request: DelegateRequest, *extensions: str) -> Any:
    return json.loads(body_of(request, "m", extensions))


def test_a_conversation_goes_out_as_it_is() -> None:
    request = DelegateRequest(messages=(ChatMessage("user", "é", name="Ann"), ChatMessage("assistant", "b")))
    messages = [{"role": "user", "content": "é", "name": "Ann"}, {"role": "assistant", "content": "b"}]
    assert sent(request) == ALWAYS | {"messages": messages}
    assert endpoint(request) == "chat/completions"


@pytest.mark.parametrize("prompt", ["a", (1, 2)])
def test_a_plain_prompt_is_text_or_token_ids(prompt: str | tuple[int, ...]) -> None:
    request = DelegateRequest(prompt=prompt, max_tokens=0)
    assert sent(request) == ALWAYS | {"prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": 0}
    assert endpoint(request) == "completions"


def test_every_common_option_is_sent_under_its_name() -> None:
    sampling = SamplingChoices(
        temperature=0.0, top_p=0.5, presence_penalty=1.0, frequency_penalty=-1.0, logit_bias=((7, 2.0),), seed=2**64 - 1
    )
    assert sent(DelegateRequest(prompt="a", stop=("x", "y"), sampling=sampling)) == ALWAYS | {
        "prompt": "a", "stop": ["x", "y"], "temperature": 0.0, "top_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": -1.0,
        "logit_bias": {"7": 2.0}, "seed": -1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("extension", "sampling", "ignore_eos", "value"),
    [
        ("top_k", SamplingChoices(top_k=0), False, 0),
        ("min_p", SamplingChoices(min_p=0.1), False, 0.1),
        ("repeat_penalty", SamplingChoices(repeat_penalty=1.1), False, 1.1),
        ("repetition_penalty", SamplingChoices(repeat_penalty=1.1), False, 1.1),
        ("repeat_last_n", SamplingChoices(repeat_last_n=9), False, 9),
        ("ignore_eos", SamplingChoices(), True, True),
    ],
)
def test_an_extension_is_sent_where_it_is_understood_and_refused_elsewhere(
    extension: str, sampling: SamplingChoices, ignore_eos: bool, value: object
) -> None:
    request = DelegateRequest(prompt="a", sampling=sampling, ignore_eos=ignore_eos)
    abilities_with((extension,)).check(request, "proxy")
    assert sent(request, extension) == ALWAYS | {"prompt": "a", extension: value}
    with pytest.raises(InvalidRequest, match=r"proxy\.extensions") as caught:
        abilities_with(()).check(request, "proxy")
    assert (caught.value.code, caught.value.param) == ("unsupported_by_engine", EXTENSIONS[extension])


def test_the_extensions_are_those_of_the_setting() -> None:
    assert set(EXTENSIONS) == set(PROXY_EXTENSIONS)


def test_the_time_that_is_left_travels_and_the_key_is_ours() -> None:
    assert "authorization" not in headers_of("", math.inf) and "x-tripower-deadline-ms" not in headers_of("", math.inf)
    headers = headers_of("secret", 1.5)
    assert (headers["authorization"], headers["x-tripower-deadline-ms"]) == ("Bearer secret", "1500")
    assert headers_of("", 0.0)["x-tripower-deadline-ms"] == "1"
