"""The engine contract: what a backend gives, what the runtime asks."""

from tripower.runtime.engine.answer import (
    AnswerDelta,
    AnswerPlan,
    AnswerReader,
    ContentDelta,
    PlainReader,
    ReasoningDelta,
    ToolCallDelta,
    ToolChoice,
)
from tripower.runtime.engine.constraint import Constraint, OutputFormat, TokenMask
from tripower.runtime.engine.contract import (
    Backend,
    Certificate,
    ChatMessage,
    ChatOptions,
    EngineInfo,
    LoadedModel,
    LoadSpecification,
    Progress,
    StepEngine,
    StepRow,
    TextLayer,
    ToolCall,
    ToolDefinition,
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
from tripower.runtime.engine.logprobs import RowReport, TokenLogprobs
from tripower.runtime.engine.sampling_parameters import SamplingChoices, SamplingParameters
from tripower.runtime.engine.step_loop import run_steps
from tripower.runtime.engine.step_table import StepTable

__all__ = [
    "AnswerDelta",
    "AnswerPlan",
    "AnswerReader",
    "Backend",
    "Certificate",
    "ChatMessage",
    "ChatOptions",
    "Constraint",
    "ContentDelta",
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
    "OutputFormat",
    "PlainReader",
    "Progress",
    "ReasoningDelta",
    "RowReport",
    "SamplingChoices",
    "SamplingParameters",
    "StepEngine",
    "StepRow",
    "StepTable",
    "TextLayer",
    "TokenLogprobs",
    "TokenMask",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "ToolDefinition",
    "run_steps",
]
