"""Run uses of a client one after the other, and print what each saw as one line of JSON."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

QUESTION = "What is the capital of France?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "The weather in a city", "parameters": CITY}}


class Server(NamedTuple):
    """Where a service is, and the keys that it knows."""

    url: str
    key: str
    limited_key: str

    @property
    def base_url(self) -> str:
        """What clients of OpenAI's dialect call it."""
        return f"{self.url}/v1"


def servers() -> list[Server]:
    """Those of the command line, each a JSON object."""
    return [Server(**json.loads(text)) for text in sys.argv[1:]]


def report(uses: Sequence[Callable[[], Any]]) -> None:
    """Call each and print `{name: what it returned}`; of one that raises, the traceback."""
    seen: dict[str, Any] = {}
    for use in uses:
        try:
            seen[use.__name__] = use()
        except Exception:  # noqa: BLE001 - what it was is in the report
            seen[use.__name__] = {"traceback": traceback.format_exc()}
    print(json.dumps(seen))
