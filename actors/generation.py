"""One generation from the side of whoever asked for it.

Not a generator: it yields across no nursery and no cancel scope, so it can be left at any point, and leaving it is one synchronous
message. As a context manager it is left at the end of the block; iterated over directly, when the loop is left in whatever way.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
import trio

from tripower.actors.dialogue import (
    AnswerEvent,
    Failed,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    SamplingChoices,
)
from tripower.actors.model_queue import Generate, Leave, outlet_room
from tripower.actors.model_registry import ReadyModel
from tripower.backends.sampling import check_sampling
from tripower.runtime.engine import SamplingParameters
from tripower.runtime.kernel import DeadlineExceeded, InvalidRequest, Outlet, Ref

FindReady = Callable[[str, float], Awaitable[ReadyModel]]

PLAIN_PROMPT_TOKENS = 16
"""What OpenAI's completions generate when nothing is said."""
INLINE_CHARACTERS = 16_384
"""Longer text is rendered and tokenised in a worker thread, so that it does not hold up the loop."""


class Generation:
    """An async context manager around one answer.

    Entering checks everything, loads the model if need be, and enqueues: it raises `InvalidRequest`, `NotFound`, `Overloaded`,
    `DeadlineExceeded` or `ModelRefused` before anything has been generated. Then take bursts with `receive`, or iterate over single
    events. Leaving frees the seat at the next step boundary.

    Without a block, `async for event in generation` enters at its first event. Then an exception ends it too, a cancellation
    included, and a `break` does as soon as nothing refers to the generation any more: at once, if the loop had the only reference.
    """

    def __init__(self, find: FindReady, request: GenerationRequest, deadline: float) -> None:
        self.model = request.model
        self.prompt_tokens = 0
        self.seed = 0
        self.ended = False
        self._find = find
        self._request = request
        self._deadline = deadline
        self._queued: deque[GenerationEvent] = deque()
        self._queue: Ref[Any] | None = None
        self._outlet: Outlet[GenerationEvent]
        self.ticket = -1
        self._entered = False
        self._direct = False
        self._token: trio.lowlevel.TrioToken

    async def __aenter__(self) -> Self:
        assert not self._entered, "a generation is entered once"
        self._entered = True
        self._token = trio.lowlevel.current_trio_token()
        check_request(self._request)
        ready = await self._find(self._request.model, self._deadline)
        prompt = await self._prepare(ready)
        sampling = choose_sampling(self._request.sampling, ready.text.recommended)
        check_sampling(sampling, ready.info.vocabulary_size)
        max_tokens = choose_max_tokens(self._request, len(prompt), ready.info.context_max)
        self.prompt_tokens, self.seed = len(prompt), sampling.seed
        self._outlet = Outlet(outlet_room(max_tokens))
        message = Generate(tuple(prompt), max_tokens, sampling, self._request.stop, self._request.ignore_eos)
        enqueued = await ready.queue.ask(message, deadline=self._deadline, live=self._outlet)
        self._queue, self.ticket = ready.queue, enqueued.ticket
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave(expired=isinstance(error, DeadlineExceeded) or trio.current_time() >= self._deadline)

    def leave(self, *, expired: bool = False) -> None:
        """Want nothing more. Synchronous, idempotent."""
        if not self.ended:
            self.ended = True
            self._queued.clear()
            if self._queue is not None:
                _leave(self._queue, self._outlet, Leave(self.ticket, expired))

    async def aclose(self) -> None:
        """`leave`, under the name that `contextlib.aclosing` calls. Always a checkpoint."""
        self.leave()
        await trio.lowlevel.checkpoint()

    def __del__(self) -> None:
        # Forgotten without leaving. The collector may call this on any thread, and after the loop has ended.
        if self._queue is not None and not self.ended:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(_leave, self._queue, self._outlet, Leave(self.ticket))

    async def receive(self) -> list[GenerationEvent]:
        """Everything that has come since, at least one event. The last event of all is `GenerationFinished` or `Failed`.

        Blocks; raises `DeadlineExceeded` at the deadline. Not to be called after the end.
        """
        assert not self.ended, "the generation has ended"
        events = await self._receive_in_time()
        self.ended = isinstance(events[-1], GenerationFinished | Failed)
        return events

    async def _receive_in_time(self) -> list[GenerationEvent]:
        if self._deadline >= trio.current_effective_deadline():
            return await self._outlet.receive()
        with trio.CancelScope(deadline=self._deadline):
            return await self._outlet.receive()
        self.leave(expired=True)
        raise DeadlineExceeded("the deadline passed before the answer was complete")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        """The next single event. Raises the error of `Failed`, and stops after the end."""
        if not self._entered:
            self._direct = True
        try:
            return await self._next()
        except BaseException:
            if self._direct:
                self.leave()
            raise

    async def _next(self) -> AnswerEvent:
        if not self._entered:
            await self.__aenter__()
        if not self._queued:
            if self.ended:
                raise StopAsyncIteration
            self._queued.extend(await self.receive())
        else:
            await trio.lowlevel.checkpoint()
        event = self._queued.popleft()
        if isinstance(event, Failed):
            raise event.error()
        return event

    async def _prepare(self, ready: ReadyModel) -> list[int]:
        """Prompt to tokens."""
        request = self._request
        self._check_length(ready)
        if request.messages is not None:
            messages = request.messages
            size = sum(len(message.content) for message in messages)
            return await _run(size, lambda: ready.text.render_chat(messages))
        if isinstance(request.prompt, str):
            prompt = request.prompt
            return await _run(len(prompt), lambda: ready.text.tokenize(prompt))
        tokens = list(request.prompt or ())
        for token in tokens:
            if not 0 <= token < ready.info.vocabulary_size:
                raise InvalidRequest(f"{token} is no token of a vocabulary of {ready.info.vocabulary_size}", param="prompt")
        return tokens

    def _check_length(self, ready: ReadyModel) -> None:
        """Refuse text that no tokenizer could make short enough, before one spends seconds on it."""
        size = sum(len(text) for param, text in _texts(self._request) if param != "stop")
        if size > ready.info.context_max * ready.text.piece_characters_max:
            raise InvalidRequest(
                f"{size} characters do not fit a context of {ready.info.context_max} tokens",
                code="context_length_exceeded",
                param="prompt" if self._request.messages is None else "messages",
            )


def _leave(queue: Ref[Any], outlet: Outlet[GenerationEvent], message: Leave) -> None:
    outlet.leave()
    queue.control(message)


async def _run(size: int, work: Callable[[], list[int]]) -> list[int]:
    if size <= INLINE_CHARACTERS:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # it only computes: who has left need not wait for it


def check_request(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` for what is wrong whatever the model, before one is loaded."""
    if (request.messages is None) == (request.prompt is None):
        raise InvalidRequest("give either messages or a prompt", param="messages")
    if request.max_tokens is not None and request.max_tokens < 0:
        raise InvalidRequest("max_tokens must not be negative", param="max_tokens")
    if "" in request.stop:
        raise InvalidRequest("a stop string is empty", param="stop")
    for param, text in _texts(request):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{param}: half a character is no text", code="invalid_unicode", param=param) from None


def _texts(request: GenerationRequest) -> Iterator[tuple[str, str]]:
    for message in request.messages or ():
        yield "messages", message.content
        yield "messages", message.name or ""
    if isinstance(request.prompt, str):
        yield "prompt", request.prompt
    for stop in request.stop:
        yield "stop", stop


def choose_sampling(choices: SamplingChoices, recommended: SamplingParameters) -> SamplingParameters:
    """What was asked for, else what the model file recommends; a seed of its own for whoever named none."""
    asked = {name: value for name, value in msgspec.structs.asdict(choices).items() if value is not None}
    asked.setdefault("seed", secrets.randbits(63))
    return msgspec.structs.replace(recommended, **asked)


def choose_max_tokens(request: GenerationRequest, prompt_tokens: int, context: int) -> int:
    """How many tokens may be generated. Raises `InvalidRequest` (`context_length_exceeded`) when prompt and answer do not fit."""
    if prompt_tokens == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    room = context - prompt_tokens + 1  # the last token drawn is not evaluated
    asked = request.max_tokens
    if asked is None:
        asked = room if request.messages is not None else min(room, PLAIN_PROMPT_TOKENS)
    if prompt_tokens > context or asked > room:
        wanted = request.max_tokens
        more, cure = (f" and {wanted} more were asked for", " or lower max_tokens") if wanted else ("", "")
        raise InvalidRequest(
            f"this model's context is {context} tokens; the prompt has {prompt_tokens}{more}. Shorten the prompt{cure}.",
            code="context_length_exceeded",
            param="messages" if request.messages is not None else "prompt",
        )
    return asked
