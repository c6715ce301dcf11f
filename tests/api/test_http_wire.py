"""What becomes of a request's fields: honoured, refused by name, or named as without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.strategies import conversations, field_names, json_values
from tripower.actors.dialogue import GenerationRequest
from tripower.actors.request_checks import LOGIT_BIAS_ENTRIES_MAX
from tripower.api.http.fields import IN_MESSAGES, UNSUPPORTED
from tripower.api.http.wire import CHAT, COMPLETION, CompletionIn
from tripower.runtime.engine import ChatMessage, ToolCall
from tripower.runtime.kernel import InvalidRequest

COMPLETION_FIELDS = frozenset(CompletionIn.__struct_fields__)
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(body: Any = None, *, strict: Any = False, **fields: Any) -> GenerationRequest:
    """What a chat request becomes; `body` as bytes, or fields beside one message."""
    data = body if isinstance(body, bytes) else json.dumps({"messages": MESSAGES} | fields).encode()
    request, _ = CHAT.decode(data, strict=strict)
    return request.generation(request.model or "m")


def completion(**fields: Any) -> GenerationRequest:
    request, _ = COMPLETION.decode(json.dumps({"prompt": "Hi"} | fields).encode(), strict=False)
    return request.generation("m")


def ignored(**fields: Any) -> tuple[str, ...]:
    return CHAT.decode(json.dumps({"messages": MESSAGES} | fields).encode(), strict=False)[1]


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.status == 400
    assert len(caught.value.message) < 500
    return caught.value


# What reaches the runtime.


def test_every_field_of_sampling_reaches_the_runtime() -> None:
    request = chat(
        temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, repeat_penalty=1.1, repeat_last_n=-1, presence_penalty=-2,
        frequency_penalty=2, logit_bias={"7": -100, "0": 3.5}, seed=42, stop=["a", "b"], ignore_eos=True, max_tokens=9,
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 5, 0.9, 0.1)
    assert (sampling.repeat_penalty, sampling.repeat_last_n) == (1.1, -1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.seed) == (-2, 2, 42)
    assert sampling.logit_bias == ((7, -100.0), (0, 3.5))
    assert (request.stop, request.ignore_eos, request.max_tokens) == (("a", "b"), True, 9)


def test_what_is_not_said_is_left_to_the_model() -> None:
    assert chat() == GenerationRequest(model="m", messages=(ChatMessage("user", "Hi"),))


@pytest.mark.parametrize(
    "field",
    ["model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "ignore_eos", "temperature", "top_k",
     "top_p", "min_p", "repeat_penalty", "repetition_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty",
     "logit_bias", "seed", "user", *UNSUPPORTED],
)  # fmt: skip
def test_null_means_absent(field: str) -> None:
    assert chat(**{field: None}) == chat()
    assert ignored(**{field: None}) == ()


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 9}, 9),
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
        ({"max_completion_tokens": None, "max_tokens": 9}, 9),
        ({"max_completion_tokens": 0}, 0),
    ],
)
def test_the_newer_name_of_the_token_limit_wins(fields: dict[str, Any], limit: int | None) -> None:  # BB-020
    assert chat(**fields).max_tokens == limit


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-1, 1 << 31, 10**30, 5.5, 10.0, "10", True, [1]])
def test_a_token_limit_that_is_none_is_refused(name: str, value: Any) -> None:  # BB-020
    assert refusal(**{name: value}).param == name


@pytest.mark.parametrize("name", ["n_predict", "max_new_tokens"])
def test_other_servers_names_of_the_limit_are_known_and_no_licence_to_go_on_for_ever(name: str) -> None:  # BB-020
    assert chat(**{name: 5}).max_tokens == 5
    assert chat(**{name: 5, "max_tokens": 3}).max_tokens == 3
    assert refusal(**{name: -1}).param == name


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(0, 0), (1, 1), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (-(2**63), 2**63)],
)
def test_a_seed_has_64_bits(seed: int, expected: int) -> None:
    assert chat(seed=seed).sampling.seed == expected


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**400, 1.5, "1", True])
def test_a_seed_beyond_64_bits_is_refused(seed: Any) -> None:
    assert refusal(seed=seed).param == "seed"


@pytest.mark.parametrize(("top_k", "expected"), [(0, 0), (-1, 0), (40, 40)])
def test_both_ways_to_keep_all_tokens_are_known(top_k: int, expected: int) -> None:
    assert chat(top_k=top_k).sampling.top_k == expected


def test_both_names_of_the_repetition_penalty_are_known_and_must_agree() -> None:
    assert chat(repetition_penalty=1.5).sampling.repeat_penalty == 1.5
    assert chat(repetition_penalty=1.5, repeat_penalty=1.5).sampling.repeat_penalty == 1.5
    assert refusal(repetition_penalty=1.5, repeat_penalty=1.2).param == "repetition_penalty"


@pytest.mark.parametrize(("stop", "expected"), [("x", ("x",)), (["x", "yz"], ("x", "yz")), ([], ()), (["x"] * 16, ("x",) * 16)])
def test_stop_is_a_text_or_a_list(stop: Any, expected: tuple[str, ...]) -> None:
    assert chat(stop=stop).stop == expected


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["x"] * 17, "x" * 1025, 5, [5], [["a"]]])
def test_a_stop_that_would_stop_nothing_or_everything_is_refused(stop: Any) -> None:
    param = refusal(stop=stop).param
    assert param is not None and param.startswith("stop")


# Messages.


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "a"}, ChatMessage("user", "a")),
        ({"role": "developer", "content": "a"}, ChatMessage("developer", "a")),
        ({"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ChatMessage("system", "ab")),
        ({"role": "assistant", "content": [{"type": "text", "text": "the code is 7"}]}, ChatMessage("assistant", "the code is 7")),
        ({"role": "assistant", "content": None}, ChatMessage("assistant", "")),
        ({"role": "assistant"}, ChatMessage("assistant", "")),
        ({"role": "assistant", "content": "", "tool_calls": [], "refusal": None}, ChatMessage("assistant", "")),
        ({"role": "tool", "content": "4", "tool_call_id": "call_1"}, ChatMessage("tool", "4", tool_call_id="call_1")),
        ({"role": "function", "content": "4", "name": "f"}, ChatMessage("tool", "4", "f")),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]},
         ChatMessage("assistant", "", tool_calls=(ToolCall("c", "f", '{"a":1}'),))),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}, {"function": {"name": "g", "arguments": ""}}]},
         ChatMessage("assistant", "", tool_calls=(ToolCall("call_0", "f", '{"a":1}'), ToolCall("call_1", "g", "{}")))),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, ChatMessage("assistant", "", tool_calls=(ToolCall("call_0", "f", "{}"),))),
        ({"role": "assistant", "content": "a", "reasoning_content": "hm"}, ChatMessage("assistant", "a", reasoning="hm")),
        ({"role": "assistant", "content": "a", "reasoning": "hm"}, ChatMessage("assistant", "a", reasoning="hm")),
        ({"role": "user", "content": "a", "name": "Ann-1"}, ChatMessage("user", "a", "Ann-1")),
        ({"role": "user", "content": "\ud83d\ude00"}, ChatMessage("user", "😀")),
    ],
)  # fmt: skip
def test_a_message_reaches_the_runtime_with_all_its_text(message: Any, expected: ChatMessage) -> None:  # BB-041
    assert chat(messages=[message]).messages == (expected,)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "a"}, "messages[0].role"),
        ({"role": "boss", "content": "a"}, "messages[0].role"),
        ({"role": "user<|im_end|>", "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"a": 1}}, "messages[0].content"),
        ({"role": "user", "content": "a", "name": "<|im_start|>"}, "messages[0].name"),
        ({"role": "user", "content": "a", "name": ""}, "messages[0].name"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "hologram"}]}, "messages[0].content[1]"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "<|im_end|>"}}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": [{"type": "mcp", "function": {"name": "f"}}]}, "messages[0].tool_calls[0].type"),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "x"}},
            "messages[0].function_call[0].function.arguments",
        ),
        ({"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "a", "reasoning_content": "hm"}, "messages[0].reasoning_content"),
        ({"role": "assistant", "content": "", "refusal": "no"}, "messages[0].refusal"),
        ("hi", "messages[0]"),
    ],
)
def test_a_message_that_cannot_be_understood_is_refused_by_its_place(message: Any, param: str) -> None:  # BB-041, BB-107
    assert refusal(messages=[message]).param == param


@pytest.mark.parametrize("messages", [[], "hi", None, {}, 5])
def test_a_conversation_is_a_list_with_something_in_it(messages: Any) -> None:
    assert refusal(messages=messages).param == "messages"


def test_a_missing_conversation_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(b"{}")
    assert caught.value.param == "messages"


# Prompts.


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", ""), ([0], (0,))],
)
def test_a_prompt_is_a_text_or_tokens_or_a_list_of_one_of_them(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    "prompt", [[], [[]], [1, "a"], [1.5], [True], [-1], [1 << 31], [None], [[["a"]]], [["a"]], 5, None, {}]
)
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:  # BB-061
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert (caught.value.param or "").startswith("prompt")


@pytest.mark.parametrize(
    ("prompt", "n", "expected"),
    [
        (["a", "b"], 1, [("a", 0), ("b", 0)]),
        ([[1], [2, 3]], 2, [((1,), 0), ((1,), 1), ((2, 3), 0), ((2, 3), 1)]),
        (["a", [1]], 1, [("a", 0), ((1,), 0)]),
        ("a", 3, [("a", 0), ("a", 1), ("a", 2)]),
    ],
)
def test_choices_run_over_prompts_and_then_over_n(prompt: Any, n: int, expected: Any) -> None:
    asked = COMPLETION.decode(json.dumps({"prompt": prompt, "n": n}).encode(), strict=True)[0].asked("m")
    assert [(request.prompt, request.choice) for request in asked.requests] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "prompt[1]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
    ],
)
def test_a_list_of_prompts_is_refused_by_the_first_that_is_none(fields: Any, param: str) -> None:  # BB-061
    with pytest.raises(InvalidRequest) as caught:
        completion(**fields)
    assert caught.value.param == param


# Numbers and types.


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, 2.1, "1", True, [1], {}]),
        ("top_p", [-0.1, 1.1, "1"]),
        ("min_p", [-0.1, 1.1]),
        ("top_k", [-2, 1.5, 1 << 40, "1"]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("repeat_penalty", [0, 1e-320, -1, 11]),
        ("repetition_penalty", [0, -1, 11]),
        ("repeat_last_n", [-2, 1.5]),
        ("stream", ["False", "true", 0, 1]),
        ("ignore_eos", ["false", 1]),
        ("model", [5, ["m"]]),
        ("stream_options", [[], "x", 5]),
    ],
)
def test_values_of_the_wrong_type_or_size_are_refused_by_name(name: str, values: list[Any]) -> None:  # BB-103, BB-107
    for value in values:
        assert refusal(**{name: value}).param == name


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b'"nan"', b'"Infinity"'])
@pytest.mark.parametrize(
    "name",
    ["temperature", "top_p", "min_p", "top_k", "presence_penalty", "repeat_penalty", "max_tokens", "seed", "n", "unknown"],
)
def test_a_number_that_is_not_finite_is_refused_by_name(name: str, number: bytes) -> None:  # BB-103
    body = b'{"messages":[{"role":"user","content":"Hi"}],"%s":%s}' % (name.encode(), number)
    if name == "unknown" and number.startswith(b'"'):
        assert chat(body) == chat()
        return
    with pytest.raises(InvalidRequest) as caught:
        chat(body)
    assert caught.value.status == 400
    if not (name in ("n", "unknown") and b"e999" in number):
        assert caught.value.param == name


def test_stream_options_without_a_stream_are_refused() -> None:
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert refusal(stream=False, stream_options={}).param == "stream_options"


@pytest.mark.parametrize(
    ("bias", "named"),
    [
        ({"abc": 1}, "abc"),
        ({"-1": 1}, "-1"),
        ({"1.5": 1}, "1.5"),
        ({"": 1}, "''"),
        ({"²": 1}, "²"),
        ({"99999999999": 1}, "99999999999"),
        ({"7": 1e9}, "7"),
        ({"7": -100.5}, "7"),
        ({str(token): 1 for token in range(100_000)}, str(LOGIT_BIAS_ENTRIES_MAX)),
    ],
)
def test_a_logit_bias_that_cannot_be_is_refused_by_its_token(bias: dict[str, float], named: str) -> None:  # BB-104
    error = refusal(logit_bias=bias)
    assert error.param == "logit_bias"
    assert named in error.message


@pytest.mark.parametrize("bias", [{"7": "1"}, {"7": None}, [[7, 1]], "7"])
def test_a_logit_bias_of_the_wrong_type_is_refused(bias: Any) -> None:
    param = refusal(logit_bias=bias).param
    assert param is not None and param.startswith("logit_bias")


# Odd text.


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"messages":[{"role":"user","content":"\ud83d"}]}', "messages[0].content"),
        (rb'{"messages":[{"role":"user","content":"a\ud83d b"}]}', "messages[0].content"),
        (rb'{"messages":[{"role":"user","content":"\ude00\ud83d"}]}', "messages[0].content"),
        (rb'{"messages":[{"role":"user","content":[{"type":"text","text":"\udc00"}]}]}', "messages[0].content[0].text"),
        (rb'{"messages":[{"role":"user","content":"x"}],"stop":["\ud800"]}', "stop[0]"),
        (rb'{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"arguments":"\ud83d"}}]}', "tools[0].function.arguments"),
        (b'{"messages":[{"role":"user","content":"\xed\xa0\xbd"}]}', "messages[0].content"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "messages[0].content"),
        (rb'{"messages":[{"role":"user","content":"x"}],"\ud83d":1}', "?"),
    ],
)  # fmt: skip
def test_half_a_character_is_refused_by_its_place(body: bytes, param: str) -> None:  # BB-010
    with pytest.raises(InvalidRequest) as caught:
        chat(body)
    assert (caught.value.code, caught.value.param) == ("invalid_unicode", param)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"a"', b"5", b'{"messages"}', b"{}x", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a":' * 100_000,
     b"[" * 100_000, b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"zz":' + b"[" * 5000 + b"]" * 5000 + b"}",
     b'{"messages":[{"role":"user","content":"x"}],"zz":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
     b'{"messages":[{"role":"user","content":"x"}],"max_tokens":' + b"9" * 5000 + b"}"],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_what_is_no_request_is_refused_in_few_words(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 200


def test_thousands_of_faults_are_one_short_refusal_without_their_text() -> None:  # BB-089
    error = refusal(messages=[{"role": "user", "content": 12345678}] * 5000)
    assert error.param == "messages[0].content"
    assert "12345678" not in error.message


def test_a_duplicate_key_counts_once_the_last() -> None:
    assert chat(b'{"messages":[{"role":"user","content":"x"}],"max_tokens":5,"max_tokens":1}', strict=True).max_tokens == 1


# Unknown and unsupported fields (ecosystem C6).


@pytest.mark.parametrize("name", sorted(name for name, rule in UNSUPPORTED.items() if not rule.told))
def test_an_unsupported_field_is_refused_with_what_would_work_unless_it_asks_for_nothing(name: str) -> None:
    rule = UNSUPPORTED[name]
    decoder = COMPLETION if name not in COMPLETION_FIELDS else CHAT

    def decode(value: Any) -> tuple[str, ...]:
        return decoder.decode(json.dumps({"messages": MESSAGES, "prompt": "p", name: value}).encode(), strict=False)[1]

    for neutral in (None, *rule.neutral):
        assert name not in decode(neutral)
    with pytest.raises(InvalidRequest) as caught:
        decode({"anything": "else"})
    error = caught.value
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert rule.instead in error.message


@pytest.mark.parametrize("name", sorted(name for name, rule in UNSUPPORTED.items() if rule.told))
def test_a_field_that_is_not_honoured_and_changes_no_answer_is_accepted_aloud(name: str) -> None:  # BB-028
    for neutral in (None, *UNSUPPORTED[name].neutral):
        assert ignored(**{name: neutral}) == ()
    assert ignored(**{name: {"anything": "else"}}) == (name,)
    with pytest.raises(InvalidRequest) as caught:
        chat(strict=True, **{name: {"anything": "else"}})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


def test_a_request_may_ask_for_its_answer_to_be_kept_and_hears_that_it_is_not() -> None:
    assert ignored(store=True, prediction={"type": "content", "content": "Hi"}) == ("store", "prediction")
    assert ignored(store=False) == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 3}, "temperature should be a number of at most 2"),
        ({"temperature": "x"}, "temperature should be a number, not a text"),
        ({"max_tokens": 1.5}, "max_tokens should be a whole number, not a fraction"),
        ({"stream": "false"}, "stream should be true or false, not a text"),
        ({"stop": ""}, "stop should be a text of at least 1 character"),
        ({"stop": ["a"] * 17}, "stop should be a list of at most 16 entries"),
        ({"n": 0}, "n should be a whole number of at least 1"),
        ({"messages": []}, "messages should be a list of at least 1 entry"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused_by_its_field_and_in_words(fields: dict[str, Any], message: str) -> None:
    error = refusal(**fields)
    assert (error.message, error.param) == (message, next(iter(fields)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 2), ("best_of", True), ("suffix", "end"), ("echo", True), ("audio", {}), ("modalities", ["text", "audio"]),
     ("use_beam_search", True), ("allowed_token_ids", [1]), ("chat_template", "x")],
)  # fmt: skip
def test_a_wish_that_cannot_be_kept_never_becomes_a_free_answer(name: str, value: Any) -> None:  # BB-028
    assert (refusal(**{name: value}).code, refusal(**{name: value}).param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("n", [0, -1, 129, 10**9, True, "2", 1.5])
def test_a_number_of_choices_that_is_none_is_refused(n: Any) -> None:  # BB-097
    assert refusal(n=n, stream=True).param == "n"


@pytest.mark.parametrize("name", sorted(IN_MESSAGES))
def test_an_unsupported_field_of_a_message_is_refused_by_its_place(name: str) -> None:
    error = refusal(messages=[*MESSAGES, {"role": "assistant", "content": "a", name: [{"anything": 1}]}])
    assert (error.code, error.param) == ("unsupported_parameter", f"messages[1].{name}")


def test_unknown_fields_are_named_on_every_level() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}], "mood": "good"}
    names = ignored(messages=[message, message], top_secret=1, stream=True, stream_options={"include_obfuscation": True})
    assert names == ("top_secret", "stream_options.include_obfuscation", "messages.mood", "messages.content.cache_control")


def test_fields_that_change_no_answer_are_no_news() -> None:
    assert ignored(user="u", metadata={"a": "b"}, service_tier="auto", prompt_cache_key="k", safety_identifier="s") == ()


def test_a_strict_client_is_refused_for_a_field_that_nobody_knows() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(strict=True, top_secret=1, other=2)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "top_secret")
    assert "other" in caught.value.message
    assert chat(strict=True, user="u", n=1) == chat()


# Anything at all.


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(field_names, json_values, max_size=6), conversations, st.booleans())
def test_any_json_is_a_request_or_refused(fields: dict[str, Any], conversation: Any, plausible: bool) -> None:
    body = fields | ({"messages": conversation, "prompt": "p"} if plausible else {})
    data = json.dumps(body).encode()
    for decoder in (CHAT, COMPLETION):
        try:
            request, names = decoder.decode(data, strict=False)
            assert all(isinstance(each, GenerationRequest) for each in request.asked("m").requests)
            assert all(isinstance(name, str) for name in names)
        except InvalidRequest as error:
            assert error.status == 400


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=64))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for body in (data, b'{"messages":[{"role":"user","content":"' + data + b'"}]}'):
        try:
            CHAT.decode(body, strict=False)[0].generation("m")
        except InvalidRequest as error:
            assert error.status == 400
