"""The chat at `/ui`, as somebody uses it with a mouse and a keyboard."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.api.dialects.marked import MarkedReader
from tests.api.fake_runtime import HELLO, FakeRuntime, Script, finished, tokens
from tests.browser.chromium import SHIFT, Page
from tests.browser.conftest import scripted
from tripower.runtime.kernel import InvalidRequest, Overloaded

pytestmark = pytest.mark.long
ANSWER = ".turn.assistant:last-of-type"
IS_OVER = f"document.querySelector('{ANSWER}')?.getAttribute('aria-busy') === 'false'"
LONG = "b"
"""What the toy answers at length at temperature 0, so that there is something to stop."""


def open_chat(page: Page, url: str) -> None:
    page.open(f"{url}/ui")
    page.wait("document.querySelector('#model').options.length > 0")


def choose(page: Page, **settings: str) -> None:
    """Fill settings in, as somebody does."""
    page.click(".controls summary")
    for name, value in settings.items():
        page.click(f"#settings [name={name}]")
        page.type(value)
    page.click(".controls summary")


def ask(page: Page, text: str) -> None:
    """Type a question and send it."""
    page.click("#prompt")
    page.type(text)
    page.press("Enter")


def answer_to(page: Page, text: str) -> str:
    """Ask and wait for the whole answer."""
    ask(page, text)
    page.wait(IS_OVER)
    return page.text(f"{ANSWER} > .text")


def asked_of(runtime: FakeRuntime) -> list[str]:
    """The conversation that the model was asked last."""
    messages = runtime.requests[-1].messages
    assert messages is not None
    return [message.content for message in messages]


def looked_up(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path) as answer:
        return json.load(answer)


def test_a_question_is_asked_and_answered_by_a_real_model(page: Page, smollm2_url: str) -> None:
    open_chat(page, smollm2_url)
    choose(page, temperature="0")
    assert "Paris" in answer_to(page, "What is the capital of France? Answer in one sentence.")
    note = page.text(f"{ANSWER} .note")
    assert "tokens/s" in note and "first after" in note


def test_stop_stops_and_the_seat_is_free(page: Page, slow_url: str) -> None:
    open_chat(page, slow_url)
    choose(page, temperature="0")
    for with_mouse in (True, False):
        ask(page, LONG)
        page.wait(f"document.querySelector('{ANSWER} > .text').innerText.length > 3")
        assert [each["model"] for each in looked_up(slow_url, "/v1/requests")["data"]] == ["slow"]
        if with_mouse:
            page.click("#stop")
        else:
            page.press("Escape")
        page.wait(IS_OVER)
        assert "stopped" in page.text(f"{ANSWER} .note")
        written = page.text(f"{ANSWER} > .text")
        page.wait(f"fetch('{slow_url}/v1/requests').then((answer) => answer.json()).then(({{ data }}) => data.length === 0)")
        page.wait(
            f"fetch('{slow_url}/slots').then((answer) => answer.json()).then((slots) => !slots.some((each) => each.is_processing))"
        )
        assert page.text(f"{ANSWER} > .text") == written


def test_a_reload_keeps_the_conversation_and_a_new_one_forgets_it(page: Page) -> None:
    with scripted(HELLO) as server:
        open_chat(page, server.url)
        answer_to(page, "The first question")
        answer_to(page, "The second one")
        before = page.text("#log")
        page.reload()
        page.wait("document.querySelector('#model').options.length > 0")
        assert page.text("#log") == before and "The second one" in before
        answer_to(page, "The third one")
        assert asked_of(server.runtime) == [
            "The first question",
            "Hello there",
            "The second one",
            "Hello there",
            "The third one",
        ]
        page.click("#new")
        page.reload()
        assert page.count(".turn") == 0


def test_a_reload_in_the_middle_keeps_what_had_come_and_frees_the_seat(page: Page, slow_url: str) -> None:
    open_chat(page, slow_url)
    choose(page, temperature="0")
    ask(page, LONG)
    page.wait(f"document.querySelector('{ANSWER} > .text').innerText.length > 3")
    page.reload()
    page.wait(f"document.querySelector('{ANSWER} > .text').innerText.length > 3")
    page.wait(f"fetch('{slow_url}/v1/requests').then((answer) => answer.json()).then(({{ data }}) => data.length === 0)")
    assert page.evaluate("document.querySelector('#stop').hidden")


def test_the_browser_itself_would_refuse_markup_and_strangers(page: Page) -> None:
    """The policy's part: what a fault of the script could do is stopped, too."""
    with scripted(HELLO) as server:
        open_chat(page, server.url)
        tried = "(() => {{ try {{ {}; return 'done'; }} catch (error) {{ return error.name; }} }})()"
        assert page.evaluate(tried.format("document.body.insertAdjacentHTML('beforeend', '<i>x</i>')")) == "TypeError"
        assert page.evaluate(tried.format("document.createElement('script').textContent = 'window.broken = 1'")) == "TypeError"
        stranger = (
            "new Promise((resolve) => { const image = new Image(); image.onload = image.onerror = ({ type }) => resolve(type);"
        )
        assert page.evaluate(f"{stranger} image.src = 'http://127.0.0.1:9/x.png'; }})") == "error"
        assert page.evaluate("fetch('http://127.0.0.1:9/').catch((error) => error.name)") == "TypeError"
    page.evaluate("1")
    assert len(page.problems) >= 3 and all(
        "Policy" in problem or "TrustedHTML" in problem or "TrustedScript" in problem for problem in page.problems
    )
    page.problems.clear()


def test_what_a_model_says_is_never_markup(page: Page) -> None:
    hostile = (
        "<img src=x onerror=\"document.title='broken'\"> <script>document.title='broken'</script> **bold <b>x</b>**\n\n"
        "[a trap](javascript:alert(1)) [data](data:text/html,x) [the web](https://example.org/a) and http://example.org/b.\n\n"
        "- one `code <i>`\n- two\n\n1. first\n2. second\n\n# A heading\n\n```python\nprint('<b>')\n```\nafter"
    )
    with scripted(Script([tokens(*hostile) + finished(generated=len(hostile))])) as server:
        open_chat(page, server.url)
        answer_to(page, "<img src=y>")
    assert page.evaluate("document.title") == "tripower"
    assert page.count("#log img, #log script, #log b, #log i") == 0
    text = page.text(f"{ANSWER} > .text")
    assert "<img src=x onerror=" in text and "[a trap](javascript:alert(1))" in text and "[data](data:text/html,x)" in text
    links = page.evaluate("[...document.querySelectorAll('#log a')].map((a) => [a.href, a.textContent, a.rel, a.target])")
    guarded = ["noopener noreferrer", "_blank"]
    assert links == [["https://example.org/a", "the web", *guarded], ["http://example.org/b", "http://example.org/b", *guarded]]
    assert page.text(f"{ANSWER} strong") == "bold <b>x</b>" and page.text(f"{ANSWER} pre code") == "print('<b>')"
    items = page.evaluate("[...document.querySelectorAll('#log li')].map((item) => item.innerText)")
    assert items == ["one code <i>", "two", "first", "second"] and page.text(f"{ANSWER} .heading") == "A heading"


def test_what_it_thought_is_folded(page: Page) -> None:
    with scripted(Script([tokens("?hm", "?so", "It ", "is") + finished(generated=4)], reader=MarkedReader)) as server:
        open_chat(page, server.url)
        assert answer_to(page, "Well?") == "It is"
    assert page.evaluate(f"document.querySelector('{ANSWER} details').open") is False
    page.click(f"{ANSWER} summary")
    assert page.text(f"{ANSWER} details .text") == "hmso"


def test_a_model_without_a_chat_template_continues_the_text(page: Page) -> None:
    refusal = InvalidRequest("use /v1/completions", code="chat_template_missing")
    with scripted(Script(refusal=refusal), HELLO) as server:
        open_chat(page, server.url)
        assert answer_to(page, "The sky is") == "Hello there"
        assert "no chat template" in page.text(f"{ANSWER} .note")
        assert server.runtime.requests[-1].prompt == "The sky is"
    [problem] = page.problems
    assert "400" in problem
    page.problems.clear()


def test_an_error_is_told_and_the_question_can_be_asked_again(page: Page) -> None:
    with scripted(Script(refusal=Overloaded("the waiting room is full", code="queue_full")), HELLO) as server:
        open_chat(page, server.url)
        answer_to(page, "Anybody?")
        assert page.text(f"{ANSWER} .error") == "the waiting room is full"
        page.click(f"{ANSWER} footer button:last-of-type")
        page.wait(f"document.querySelector('{ANSWER} > .text').innerText === 'Hello there'")
        assert page.count(".turn") == 2
        assert asked_of(server.runtime) == ["Anybody?"]
    [problem] = page.problems
    assert "503" in problem
    page.problems.clear()


def test_settings_are_sent_and_kept(page: Page) -> None:
    with scripted(HELLO) as server:
        open_chat(page, server.url)
        choose(page, temperature="0.5", max_tokens="77", seed="9", system="Be brief.")
        answer_to(page, "Well?")
        asked = server.runtime.requests[-1]
        assert (asked.sampling.temperature, asked.max_tokens, asked.sampling.seed) == (0.5, 77, 9)
        assert asked_of(server.runtime) == ["Be brief.", "Well?"]
        page.reload()
        assert page.evaluate("document.querySelector('input[name=max_tokens]').value") == "77"


def test_an_answer_can_be_copied(page: Page) -> None:
    with scripted(HELLO) as server:
        open_chat(page, server.url)
        page.allow("clipboardReadWrite", "clipboardSanitizedWrite")
        answer_to(page, "Well?")
        page.click(f"{ANSWER} footer button")
        page.wait(f"document.querySelector('{ANSWER} footer button').innerText === 'Copied'")
        assert page.evaluate("navigator.clipboard.readText()") == "Hello there"


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    """The message has the focus from the start; what the focus is on can be seen; every control comes with Tab."""
    with scripted(HELLO) as server:
        open_chat(page, server.url)
        page.wait("document.activeElement.id === 'prompt'")
        page.type("two")
        page.press("Enter", SHIFT)
        page.type("lines")
        page.press("Enter")
        page.wait(IS_OVER)
        assert asked_of(server.runtime) == ["two\nlines"]
        seen = {}
        for _ in range(20):
            page.press("Tab")
            name, outline = page.evaluate(
                "(({ activeElement: at }) => [at === document.body ? 'body' : at.id || at.textContent, getComputedStyle(at).outlineStyle])(document)"
            )
            seen[name] = outline
        assert {"Chat", "Status", "model", "new", "Settings", "log", "Copy", "Ask again", "prompt", "send"} <= set(seen)
        assert {name for name, outline in seen.items() if outline != "solid"} <= {
            "body"
        }  # where the browser's own controls come in between
        page.wait("document.activeElement.hash === '#status' || (document.querySelector('nav a:last-child').focus(), false)")
        page.press("Enter")
        page.wait("!document.querySelector('#status-view').hidden && document.querySelector('#tree').innerText.includes('api')")


def test_it_works_at_400_pixels(page: Page, slow_url: str) -> None:
    page.resize(400, 800, mobile=True)
    open_chat(page, slow_url)
    choose(page, temperature="0")
    ask(page, "a-long-word-" * 30)
    page.wait(f"document.querySelector('{ANSWER} > .text').innerText.length > 3")
    for view, sign in (("#chat", "#stop"), ("#status", "#tree .request")):
        page.evaluate(f"location.hash = '{view}'")
        page.wait(f"document.querySelector('{sign}')?.getBoundingClientRect().width > 0")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        outside = (
            "[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && !each.closest('.aside, thead, h2, .bar'))"
            ".filter((each) => each.getBoundingClientRect().right > 400).map((each) => each.outerHTML.slice(0, 200))"
        )
        assert page.evaluate(outside) == []
    page.evaluate("location.hash = '#chat'")
    page.click("#stop")
    page.wait(IS_OVER)


def test_light_and_dark_follow_the_person_and_so_does_motion(page: Page) -> None:
    with scripted(HELLO) as server:
        open_chat(page, server.url)
        grounds = []
        for scheme in ("light", "dark"):
            page.prefer(color_scheme=scheme, reduced_motion="reduce")
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert grounds == ["rgb(251, 250, 247)", "rgb(22, 25, 29)"]
        page.evaluate("location.hash = '#status'")
        page.wait("document.querySelector('#tree .dot')")
        assert page.evaluate("getComputedStyle(document.querySelector('#tree .dot')).transitionDuration") == "0s"
