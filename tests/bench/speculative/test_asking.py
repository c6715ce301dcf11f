"""What is asked of either server, and what is made of its stream."""

from __future__ import annotations

import msgspec
import pytest

from tripower.bench.speculative.asking import AnsweredGroup, read_events, request_for
from tripower.bench.workloads.prompts import Prompt
from tripower.runtime.kernel import Unavailable

PROMPT = Prompt("a name", "Say it.", "It is said:")


def body(request: bytes) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(request.partition(b"\r\n\r\n")[2])
    return found


def test_a_model_that_chats_is_asked_by_a_message_and_another_one_by_a_text() -> None:
    chat = request_for("m", PROMPT, chats=True, tokens=8, reuse=False)
    assert chat.startswith(b"POST /v1/chat/completions ")
    assert body(chat)["messages"] == [{"role": "user", "content": "Say it."}]
    text = request_for("m", PROMPT, chats=False, tokens=8, reuse=True)
    assert text.startswith(b"POST /v1/completions ") and body(text)["prompt"] == "It is said:"
    assert [body(each)["cache_prompt"] for each in (chat, text)] == [False, True]
    assert body(text)["temperature"] == 0 and "ignore_eos" not in body(text)


def test_text_and_counts_are_gathered_from_either_dialect() -> None:
    events = [
        b'{"choices": [{"delta": {"role": "assistant", "content": null}}]}',
        b'{"choices": [{"delta": {"content": "a"}}]}',
        b'{"choices": [{"text": "b"}]}',
        b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}}',
        b'{"choices": [], "timings": {"draft_n": 3, "draft_n_accepted": 2}}',
    ]
    found = read_events(events, 2.0)
    assert (found.text, found.tokens, found.prompt_tokens, found.cached_tokens) == ("ab", 4, 9, 8)
    assert (found.drafted, found.accepted) == (3, 2)
    assert AnsweredGroup((found, found), 4.0).speed == 2.0


@pytest.mark.parametrize("events", [[b'{"error": {"message": "lost"}}'], [b'{"choices": [{"text": "b"}]}']])
def test_an_answer_without_its_counts_is_no_figure(events: list[bytes]) -> None:
    with pytest.raises(Unavailable):
        read_events(events, 1.0)
