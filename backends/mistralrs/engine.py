"""mistral.rs as a delegate: each request is a blocking iterator, pulled on a thread of its own.

Tried with the wheel 0.9.5: letting go of the iterator ends the generation within a step; what is not read does not slow it down; the
`stop_seqs` of a streamed chat are not heeded (the runtime ends the text itself); there is no seed for a request; a plain prompt can be
neither streamed nor stopped, so its length is bounded and a caller who leaves waits for its end.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

from tripower.backends.mistralrs.question import chat_options, completion_options
from tripower.runtime.engine import (
    DelegateAbilities,
    DelegateEnd,
    DelegateEvent,
    DelegatePiece,
    DelegateRequest,
    EngineInfo,
)
from tripower.runtime.kernel import BlockingStream, DeviceFailed, InvalidRequest, TripowerError

COMPLETION_TOKENS_MAX = 256
ROOM = 4096
"""Pieces that may wait for the loop: a second's worth of what a processor generates, many times over."""
HONOURED = frozenset(
    {
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "ignore_eos",
    }
)
ROLES = frozenset({"system", "user", "assistant", "tool"})
TOO_LONG = "Prompt sequence length is greater than"


class MistralrsEngine:
    """See the module. `runner` is a `mistralrs.Runner`."""

    def __init__(self, runner: Any, info: EngineInfo, *, chat: bool) -> None:
        self._runner = runner
        self._sending = threading.Lock()
        """A runner cannot be borrowed by two threads at once; the streams that it gives are independent."""
        self._streams: set[BlockingStream[DelegateEvent]] = set()
        self.info = info
        self.abilities = DelegateAbilities(
            chat=chat, completion_tokens_max=COMPLETION_TOKENS_MAX, tokens_min=1, options=HONOURED, roles=ROLES
        )

    def stream(self, request: DelegateRequest, *, seconds: float) -> MistralrsStream:
        """See `DelegateEngine.stream`. Raises `InvalidRequest` (`context_length_exceeded`) and `DeviceFailed`."""
        return MistralrsStream(self, request)

    def events(self, request: DelegateRequest) -> Iterator[DelegateEvent]:
        """The whole answer. Blocks, on the stream's own thread."""
        try:
            yield from self._complete(request) if request.messages is None else self._chat(request)
        except (TripowerError, GeneratorExit):
            raise
        except BaseException as error:  # the seam where the library's exceptions become ours; a panic in Rust is no Exception
            raise _mapped(error, request) from error

    def _chat(self, request: DelegateRequest) -> Iterator[DelegateEvent]:
        from mistralrs import ChatCompletionRequest

        asking = ChatCompletionRequest(model="default", stream=True, **chat_options(request))
        chunks = self._send(lambda runner: runner.send_chat_completion_request(asking))
        for chunk in chunks:
            for choice in chunk.choices:
                if choice.delta.content:
                    yield DelegatePiece(choice.delta.content)
                if choice.finish_reason:
                    yield _end(choice.finish_reason, chunk.usage)
                    return
        raise DeviceFailed("mistral.rs ended its answer without a reason", code="delegate_truncated")

    def _complete(self, request: DelegateRequest) -> Iterator[DelegateEvent]:
        from mistralrs import CompletionRequest

        asking = CompletionRequest(model="default", **completion_options(request))
        answer = self._send(lambda runner: runner.send_completion_request(asking))
        choice = answer.choices[0]
        yield DelegatePiece(choice.text, answer.usage.completion_tokens)
        yield _end(choice.finish_reason, answer.usage)

    def _send(self, send: Callable[[Any], Any]) -> Any:
        with self._sending:
            if self._runner is None:
                raise DeviceFailed("the model has been unloaded", code="model_unloaded")
            return send(self._runner)

    async def close(self) -> None:
        self._runner = None

    def check_usable(self) -> None:
        """Raise `DeviceFailed` while a call that was given up on has not come back: what asks next would wait behind it."""
        self._streams = {stream for stream in self._streams if stream.stuck}
        if self._streams:
            raise DeviceFailed(
                "mistral.rs does not come back from an earlier request; restart the process", code="device_wedged"
            )

    def remember(self, stream: BlockingStream[DelegateEvent]) -> None:
        """Watch a stream that has been left, in case its thread is stuck."""
        if stream.stuck:
            self._streams.add(stream)


class MistralrsStream:
    """One request and its answer."""

    def __init__(self, engine: MistralrsEngine, request: DelegateRequest) -> None:
        self._engine = engine
        self._pulled: BlockingStream[DelegateEvent] = BlockingStream(
            lambda: engine.events(request), room=ROOM, name=f"mistralrs {engine.info.architecture}"
        )

    async def __aenter__(self) -> AsyncIterator[DelegateEvent]:
        self._engine.check_usable()
        return await self._pulled.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._pulled.__aexit__(kind, error, traceback)
        self._engine.remember(self._pulled)


def _end(reason: str, usage: Any) -> DelegateEnd:
    if usage is None:
        return DelegateEnd(reason)
    return DelegateEnd(reason, usage.prompt_tokens, usage.completion_tokens)


def _mapped(error: BaseException, request: DelegateRequest) -> TripowerError:
    text = " ".join(str(error).split())[:200]
    if text.startswith(TOO_LONG):
        return InvalidRequest(
            f"the conversation does not fit this model's context: {text}",
            code="context_length_exceeded",
            param="prompt" if request.messages is None else "messages",
        )
    return DeviceFailed(f"mistral.rs failed: {text or type(error).__name__}")
