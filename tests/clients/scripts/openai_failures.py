"""The official client: refusals, retries, cancels. The server has one seat and no waiting room."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx2
import openai

from tests.clients.scripts.report import MESSAGES, report, servers

[SERVER] = servers()
LONG: Any = {"model": "slow", "messages": MESSAGES, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
SHORT: Any = {"model": "slow", "messages": MESSAGES, "max_tokens": 2}


def client(key: str = SERVER.key, **options: Any) -> Any:
    return openai.OpenAI(base_url=SERVER.base_url, api_key=key, **{"max_retries": 0, **options})


def refusal(ask: Callable[[], Any]) -> Any:
    """The class that the client makes of a refusal, and what is in it."""
    try:
        ask()
    except openai.APIStatusError as error:
        told = {name: error.response.headers.get(name) for name in ("retry-after", "retry-after-ms", "x-should-retry")}
        return {"class": type(error).__name__, "status": error.status_code, "code": error.code, "param": error.param, **told}
    return None


def classes() -> Any:
    create = client().chat.completions.create
    return {
        "field": refusal(lambda: create(model="slow", messages=MESSAGES, temperature=9)),
        "long": refusal(lambda: create(model="slow", messages=MESSAGES, max_tokens=100_000)),
        "key": refusal(lambda: client("tp-nobody-has-this").chat.completions.create(**SHORT)),
        "model": refusal(lambda: create(model="nonsense", messages=MESSAGES)),
        "late": refusal(lambda: create(**LONG, extra_headers={"x-tripower-deadline-ms": "60"})),
    }


def retries(key: str, holder: str) -> Any:
    """Refused while somebody streams; that stream ends at the first refusal, so the retry that the client makes by itself succeeds."""
    with client(holder).chat.completions.create(**LONG, stream=True) as stream:
        next(stream)
        refused = refusal(lambda: client(key).chat.completions.create(**SHORT))
        statuses: list[int] = []

        def look(response: Any) -> None:
            statuses.append(response.status_code)
            stream.close()

        http = httpx2.Client(event_hooks={"response": [look]})
        patient = client(key, max_retries=5, http_client=http)
        answer = patient.chat.completions.create(**SHORT)
    return {"refused": refused, "statuses": statuses, "tokens": answer.usage.completion_tokens}


def full_server() -> Any:
    return retries(SERVER.key, SERVER.key)


def busy_key() -> Any:
    return retries(SERVER.limited_key, SERVER.limited_key)


def cancels() -> Any:
    """A client that goes away frees the seat, whether it streamed or waited."""
    seen = []
    for _ in range(3):
        with client().chat.completions.create(**LONG, stream=True) as stream:
            next(stream)
        seen.append(client(max_retries=5).chat.completions.create(**SHORT).usage.completion_tokens)
    try:
        client(timeout=0.3).chat.completions.create(**LONG)
    except openai.APITimeoutError:
        seen.append(client(max_retries=5).chat.completions.create(**SHORT).usage.completion_tokens)
    return seen


def cancelled_by_id() -> Any:
    """A request that another connection ends says so to its own client."""
    heard: list[Any] = []
    begun = threading.Event()

    def ask() -> None:
        try:
            with client().chat.completions.create(**LONG, stream=True, extra_headers={"x-request-id": "mine"}) as stream:
                for _ in stream:
                    begun.set()
        except openai.APIError as error:
            heard.append(error.code)

    asking = threading.Thread(target=ask)
    asking.start()
    begun.wait(30)
    with httpx2.Client(headers={"authorization": f"Bearer {SERVER.key}"}) as http:
        listed = [entry["id"] for entry in http.get(f"{SERVER.base_url}/requests").json()["data"]]
        ended = http.delete(f"{SERVER.base_url}/requests/mine").status_code
    asking.join(30)
    return {"listed": listed, "ended": ended, "heard": heard}


report([classes, full_server, busy_key, cancels, cancelled_by_id])
