"""From what was asked to what a queue understands, without a queue."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tripower.actors.dialogue import GenerationRequest
from tripower.actors.models import ReadyModel
from tripower.actors.preparation import INLINE_CHARACTERS, prepare, size_of
from tripower.backends.toy import ToyText
from tripower.runtime.engine import ChatMessage, ChatOptions, EngineInfo, LoadedModel, ToolChoice, ToolDefinition
from tripower.runtime.engine.contract import PLAIN_CHAT
from tripower.runtime.kernel import InvalidRequest, Ref

TOOLS = (ToolDefinition("add"), ToolDefinition("sub"))


class TellingText(ToyText):
    """A toy whose prompt names the tools that its template was told of."""

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> list[int]:
        return self.tokenize(",".join(tool.name for tool in options.tools) + ":")


@pytest.mark.parametrize(("choice", "prompt"), [(ToolChoice(), "add,sub:"), (ToolChoice(mode="none"), ":")])
async def test_a_model_that_must_call_nothing_is_not_told_of_the_tools(choice: ToolChoice, prompt: str) -> None:
    info = EngineInfo(backend="toy", architecture="toy", context_max=64, vocabulary_size=257, sequences_max=1)
    loaded = LoadedModel(cast(Any, SimpleNamespace(info=info)), TellingText())
    request = GenerationRequest(
        model="toy", messages=(ChatMessage("user", "Hi"),), chat=ChatOptions(tools=TOOLS), tool_choice=choice
    )
    prepared = await prepare(ReadyModel("toy", cast(Ref[Any], None), loaded), request)
    assert prepared.prompt == tuple(loaded.text.tokenize(prompt))


async def test_very_many_ids_are_refused_by_their_number_before_each_is_looked_at() -> None:
    info = EngineInfo(backend="toy", architecture="toy", context_max=64, vocabulary_size=257, sequences_max=1)
    loaded = LoadedModel(cast(Any, SimpleNamespace(info=info)), ToyText())
    request = GenerationRequest(model="toy", prompt=(-1,) * 65)
    with pytest.raises(InvalidRequest) as refusal:
        await prepare(ReadyModel("toy", cast(Ref[Any], None), loaded), request)
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "prompt")


def test_messages_without_content_are_work_too() -> None:
    assert size_of((ChatMessage("user", ""),) * 1000) > INLINE_CHARACTERS > size_of((ChatMessage("user", "Hi"),) * 100)
