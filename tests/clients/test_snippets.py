"""The snippets of `docs/clients.md` run as they stand there, but for the address and the key."""

from __future__ import annotations

import re

import pytest

from tests.clients.conftest import ROOT, Clients, Served

pytestmark = pytest.mark.long
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"^### (\S+)\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))


def test_there_is_a_snippet_for_each_library() -> None:
    assert set(SNIPPETS) == {"openai", "anthropic", "LangChain", "LiteLLM"}


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_of_the_page_runs(name: str, clients: Clients, served: Served) -> None:
    code = SNIPPETS[name].replace("http://127.0.0.1:8420", served.url).replace("the-key-of-mine", served.key)
    finished = clients.run("-c", code)
    assert finished.returncode == 0, finished.stderr
    assert "Paris" in finished.stdout
