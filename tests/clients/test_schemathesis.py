"""schemathesis reads `/openapi.json` and asks what it describes, and what it does not, in every position.

Its phases: each boundary of every schema once, then random values. Its checks: no internal error; status, media type, headers and body
as described; data that break the schema are refused; a verb that does not exist is 405; no route lets somebody in without a key.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.conftest import Clients, Served

pytestmark = pytest.mark.long
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
OPERATIONS_MIN = 24
REQUESTS_MIN = 500


def test_the_service_is_what_its_document_says(clients: Clients, quick: Served) -> None:
    command = ("-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run", f"{quick.url}/openapi.json")
    finished = clients.run(*command, "-H", f"Authorization: Bearer {quick.key}")
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    tested, generated = re.search(r"Tested: (\d+)", finished.stdout), re.search(r"(\d+) generated", finished.stdout)
    assert tested is not None and generated is not None
    assert int(tested[1]) >= OPERATIONS_MIN and int(generated[1]) >= REQUESTS_MIN
