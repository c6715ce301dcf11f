"""Where tripower keeps its files: `$TRIPOWER_HOME`, else `~/.tripower`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home_directory(environment: Mapping[str, str] | None = None) -> Path:
    """The home of the store, the configuration file and the locks. Nothing is created and nothing is opened."""
    named = (os.environ if environment is None else environment).get("TRIPOWER_HOME", "")
    return Path(named).expanduser().absolute() if named else Path.home() / ".tripower"
