"""The engine contract: what a backend gives, what the runtime asks."""

from tripower.runtime.engine.contract import (
    Backend,
    ChatMessage,
    EngineInfo,
    LoadedModel,
    LoadSpecification,
    Progress,
    StepEngine,
    StepRow,
    TextLayer,
)
from tripower.runtime.engine.sampling_parameters import SamplingParameters
from tripower.runtime.engine.step_loop import run_steps
from tripower.runtime.engine.step_table import StepTable

__all__ = [
    "Backend",
    "ChatMessage",
    "EngineInfo",
    "LoadSpecification",
    "LoadedModel",
    "Progress",
    "SamplingParameters",
    "StepEngine",
    "StepRow",
    "StepTable",
    "TextLayer",
    "run_steps",
]
