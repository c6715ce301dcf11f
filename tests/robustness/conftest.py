"""Model files for the tests of this folder, made by the fixtures of others."""

from __future__ import annotations

from tests.api.test_checkpoint_folders import folder
from tests.backends.conftest import load_native, load_tiny, load_torch, one_thread, tiny_model

__all__ = ["folder", "load_native", "load_tiny", "load_torch", "one_thread", "tiny_model"]
