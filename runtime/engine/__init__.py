"""The engine contract: what a backend gives, what the runtime asks."""

from tripower.runtime.engine.contract import (
    Backend,
    Certificate,
    ChatMessage,
    EngineInfo,
    LoadedModel,
    LoadSpecification,
    Progress,
    StepEngine,
    StepRow,
    TextLayer,
)
from tripower.runtime.engine.delegate import (
    DelegateAbilities,
    DelegateBackend,
    DelegateEnd,
    DelegateEngine,
    DelegateEvent,
    DelegatePiece,
    DelegateRequest,
    LoadedDelegate,
)
from tripower.runtime.engine.sampling_parameters import SamplingChoices, SamplingParameters
from tripower.runtime.engine.step_loop import run_steps
from tripower.runtime.engine.step_table import StepTable

__all__ = [
    "Backend",
    "Certificate",
    "ChatMessage",
    "DelegateAbilities",
    "DelegateBackend",
    "DelegateEnd",
    "DelegateEngine",
    "DelegateEvent",
    "DelegatePiece",
    "DelegateRequest",
    "EngineInfo",
    "LoadSpecification",
    "LoadedDelegate",
    "LoadedModel",
    "Progress",
    "SamplingChoices",
    "SamplingParameters",
    "StepEngine",
    "StepRow",
    "StepTable",
    "TextLayer",
    "run_steps",
]
