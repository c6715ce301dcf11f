"""tripower: an actor-based inference runtime on Trio.

    async with tripower.open_runtime(models=["smollm2"]) as runtime:
        async for event in runtime.chat("smollm2", [{"role": "user", "content": "Hello!"}]):
            print(event.text, end="")

Names are imported when they are first used: `import tripower` loads no other library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tripower.api.version import VERSION as __version__

if TYPE_CHECKING:
    from tripower.actors.assistant_message import AssistantMessage
    from tripower.actors.dialogue import (
        AnswerEvent,
        Failed,
        GenerationEvent,
        GenerationFinished,
        GenerationStarted,
        PromptProgress,
        PromptScored,
        Timings,
        TokenChunk,
        Usage,
    )
    from tripower.actors.embedding import Embeddings
    from tripower.actors.generation import Generation
    from tripower.actors.models import ModelCard
    from tripower.actors.runtime import Health
    from tripower.api.embedding import EmbeddedRuntime, GenerationOptions, open_runtime
    from tripower.api.pull import ensure_model, pull
    from tripower.runtime.configuration import (
        AuthSettings,
        Configuration,
        ConsoleSettings,
        EngineSettings,
        ProxySettings,
        SchedulerSettings,
        ServerSettings,
        SpeculationChoices,
        load_configuration,
    )
    from tripower.runtime.engine import ChatMessage, TokenLogprobs, ToolCall, ToolChoice, ToolDefinition
    from tripower.runtime.engine.constraint import (
        ChoiceFormat,
        GbnfFormat,
        JsonObjectFormat,
        JsonSchemaFormat,
        LarkFormat,
        RegexFormat,
    )
    from tripower.runtime.kernel.errors import (
        DeadlineExceeded,
        DeviceFailed,
        InvalidConfiguration,
        InvalidRequest,
        ModelRefused,
        NotFound,
        Overloaded,
        TripowerError,
        Unavailable,
    )
    from tripower.runtime.store import Store

_HOMES = {
    "tripower.actors.assistant_message": ("AssistantMessage",),
    "tripower.actors.dialogue": (
        "AnswerEvent",
        "Failed",
        "GenerationEvent",
        "GenerationFinished",
        "GenerationStarted",
        "PromptProgress",
        "PromptScored",
        "Timings",
        "TokenChunk",
        "Usage",
    ),
    "tripower.actors.embedding": ("Embeddings",),
    "tripower.actors.generation": ("Generation",),
    "tripower.actors.model_registry": ("ModelCard",),
    "tripower.actors.runtime": ("Health",),
    "tripower.api.embedding": ("EmbeddedRuntime", "GenerationOptions", "open_runtime"),
    "tripower.api.pull": ("ensure_model", "pull"),
    "tripower.runtime.configuration": (
        "AuthSettings",
        "Configuration",
        "ConsoleSettings",
        "EngineSettings",
        "ProxySettings",
        "SchedulerSettings",
        "ServerSettings",
        "SpeculationChoices",
        "load_configuration",
    ),
    "tripower.runtime.engine": ("ChatMessage", "TokenLogprobs", "ToolCall", "ToolChoice", "ToolDefinition"),
    "tripower.runtime.engine.constraint": (
        "ChoiceFormat",
        "GbnfFormat",
        "JsonObjectFormat",
        "JsonSchemaFormat",
        "LarkFormat",
        "RegexFormat",
    ),
    "tripower.runtime.kernel.errors": (
        "DeadlineExceeded",
        "DeviceFailed",
        "InvalidConfiguration",
        "InvalidRequest",
        "ModelRefused",
        "NotFound",
        "Overloaded",
        "TripowerError",
        "Unavailable",
    ),
    "tripower.runtime.store": ("Store",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AnswerEvent",
    "AssistantMessage",
    "AuthSettings",
    "ChatMessage",
    "ChoiceFormat",
    "Configuration",
    "ConsoleSettings",
    "DeadlineExceeded",
    "DeviceFailed",
    "EmbeddedRuntime",
    "Embeddings",
    "EngineSettings",
    "Failed",
    "GbnfFormat",
    "Generation",
    "GenerationEvent",
    "GenerationFinished",
    "GenerationOptions",
    "GenerationStarted",
    "Health",
    "InvalidConfiguration",
    "InvalidRequest",
    "JsonObjectFormat",
    "JsonSchemaFormat",
    "LarkFormat",
    "ModelCard",
    "ModelRefused",
    "NotFound",
    "Overloaded",
    "PromptProgress",
    "PromptScored",
    "ProxySettings",
    "RegexFormat",
    "SchedulerSettings",
    "ServerSettings",
    "SpeculationChoices",
    "Store",
    "Timings",
    "TokenChunk",
    "TokenLogprobs",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "TripowerError",
    "Unavailable",
    "Usage",
    "__version__",
    "ensure_model",
    "load_configuration",
    "open_runtime",
    "pull",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
