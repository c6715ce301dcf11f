"""Fetching models: `pull` brings one into the store, `resolve` finds it, `obtain` and `ensure_model` do whichever is needed."""

from tripower.api.pull.builtin import BUILT_INS
from tripower.api.pull.progress import ProgressCallback, PullProgress
from tripower.api.pull.pull import pull
from tripower.api.pull.resolve import display_name, ensure_model, obtain, resolve
from tripower.api.pull.sources import ACCEPTED, parse_reference

__all__ = [
    "ACCEPTED",
    "BUILT_INS",
    "ProgressCallback",
    "PullProgress",
    "display_name",
    "ensure_model",
    "obtain",
    "parse_reference",
    "pull",
    "resolve",
]
