"""The version, where every layer of the border may read it without importing anything. `pyproject.toml` says the same; a test compares."""

VERSION = "0.1.0"
