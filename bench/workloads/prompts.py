"""The workloads: 12 prompts for each kind of work, and one whose answer is in the prompt word for word.

Each prompt has two forms: a message for models that chat, and the beginning of a text for models that only continue. The source texts
are data beside this module; here they are put into words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
REPETITIVE = ("edit", "quote", "code", "json")
"""Workloads in which much of the answer stands in the prompt: where speculation is for."""

Workloads = Mapping[str, Sequence["Prompt"]]
"""By the name of the work."""


class Prompt(msgspec.Struct, frozen=True):
    """One piece of work."""

    name: str
    message: str
    """What a user writes to a model that chats."""
    plain: str
    """What a model that only continues texts is given."""


def workloads() -> Workloads:
    """All of them: `edit`, `quote`, `code`, `json`, `chat`, `translate` and `high-acceptance`. Reads files; blocks for milliseconds."""
    documents, tasks = _read("documents.json"), _read("tasks.json")
    return {
        "edit": [_edit(name, documents[name], change) for name, change in tasks["edit"]],
        "quote": [_quote(documents, *task) for task in tasks["quote"]],
        "code": [_code(name, text) for name, text in _code_files()],
        "json": [_fill(number, **record) for number, record in enumerate(_read("records.json"))],
        "chat": [_chat(number, question) for number, question in enumerate(tasks["chat"])],
        "translate": [_translate(name, documents[name], language) for name, language in tasks["translate"]],
        "high-acceptance": [_copy(name, documents[name]) for name in tasks["high-acceptance"]],
    }


def _read(file: str) -> Any:
    return json.loads((HERE / file).read_text(encoding="utf-8"))


def _code_files() -> Iterator[tuple[str, str]]:
    parts = re.split(r"^=== (.+)\n", (HERE / "code.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return zip(parts[1::2], parts[2::2], strict=True)


def _edit(name: str, text: str, change: str) -> Prompt:
    return Prompt(
        name,
        f"Here is a text:\n\n{text}\n\nWrite the whole text again so that {change}. Change nothing else.",
        f"The first text:\n\n{text}\n\nThe second text, which is the first one word for word, only that {change}:\n\n",
    )


def _quote(documents: Mapping[str, str], first: str, second: str, question: str) -> Prompt:
    given = f"Document 1 ({first}):\n{documents[first]}\n\nDocument 2 ({second}):\n{documents[second]}"
    return Prompt(
        f"{first}, {second}",
        f"{given}\n\n{question}? Answer with the exact sentences of the documents, in quotation marks.",
        f'{given}\n\nQuestion: {question}?\nAnswer, in the exact sentences of the documents:\n\n"',
    )


def _code(name: str, text: str) -> Prompt:
    return Prompt(
        name, f"Continue this file, {name}. Write only code, from its first line on.\n\n```\n{text}```", text.rstrip("\n")
    )


def _fill(number: int, fields: Sequence[str], text: str) -> Prompt:
    keys = ", ".join(f'"{field}"' for field in fields)
    return Prompt(
        f"records {number + 1}",
        f"{text}\n\nWrite this as a JSON array with one object for each, with the keys {keys}. Write only JSON.",
        f'{text}\n\nThe same as a JSON array with one object for each, with the keys {keys}:\n\n[\n  {{"{fields[0]}":',
    )


def _chat(number: int, question: str) -> Prompt:
    return Prompt(f"question {number + 1}", question, f"Question: {question}\n\nAnswer:")


def _translate(name: str, text: str, language: str) -> Prompt:
    return Prompt(
        f"{name}, {language}",
        f"Translate this text into {language}:\n\n{text}",
        f"English text:\n\n{text}\n\n{language} translation:\n\n",
    )


def _copy(name: str, text: str) -> Prompt:
    return Prompt(name, f"Repeat this text word for word:\n\n{text}", f"{text}\n\nThe same text once more:\n\n{text[:60]}")
