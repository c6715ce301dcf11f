"""The events of one stream, as bytes.

A streamed token differs from the one before in one string only, so for plain text everything else of its JSON is encoded once a
request. `id`, `created` and `model` are the same in all events.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from tripower.actors.dialogue import GenerationFinished, PromptProgress, PromptScored, TokenChunk, Usage
from tripower.actors.generation import Generation
from tripower.api.http.answers import (
    CHAT,
    DONE,
    FINGERPRINT,
    Dialect,
    encode,
    merged,
    new_id,
    timings_out,
    usage_out,
)
from tripower.api.http.text.choice_writers import ChatWriter, CompletionWriter
from tripower.api.http.wire import Asked, StreamOptions


class Chunks:
    """See the module. Made when all choices have been entered."""

    def __init__(self, dialect: Dialect, asked: Asked, generations: Sequence[Generation], options: StreamOptions) -> None:
        head = {
            "id": new_id(dialect),
            "object": dialect.chunk,
            "created": int(time.time()),
            "model": asked.requests[0].model,
            "system_fingerprint": FINGERPRINT,
        }
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = bool(options.continuous_usage_stats)
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        self._n = asked.n
        make = ChatWriter if dialect is CHAT else CompletionWriter
        parts = zip(asked.requests, generations, strict=True)
        self._writers = [make(index, asked, request, generation) for index, (request, generation) in enumerate(parts)]
        self._plain = [self._head + writer.before_text if writer.is_plain else b"" for writer in self._writers]
        self._after_text = make.after_text + self._tail
        self._prompt_tokens = sum(generation.prompt_tokens for generation in generations[:: asked.n])
        self._completion_tokens = 0
        self._ends: list[GenerationFinished | None] = [None] * len(generations)
        self._left = len(generations)
        self._last: list[bytes] = []

    def opening(self) -> bytes:
        """What comes before everything else."""
        return self._events(choice for writer in self._writers for choice in writer.opening())

    def token(self, index: int, event: TokenChunk) -> bytes:
        """One token of one choice."""
        plain = self._plain[index]
        if plain and not self._continuous_usage:
            return plain + encode(event.text) + self._after_text
        self._completion_tokens += 1
        return self._events(self._writers[index].token(event))

    def scored(self, index: int, event: PromptScored) -> bytes:
        """What is known of the prompt's tokens."""
        return self._events(self._writers[index].scored(event))

    def progress(self, event: PromptProgress) -> bytes:
        """How much of a prompt is evaluated, in llama-server's words."""
        told = {
            "total": event.total,
            "cache": event.cached,
            "processed": event.processed,
            "time_ms": round(1000 * event.seconds, 3),
        }
        return self._head + b'],"prompt_progress":' + encode(told) + self._current_tail()[1:]

    def finish(self, index: int, finished: GenerationFinished) -> bytes:
        """The end of one choice. What ends the last one of all is kept for `end`."""
        self._ends[index] = finished
        self._left -= 1
        choices = self._writers[index].finish(finished)
        if not self._left:
            self._last = choices[-1:]
            self._completion_tokens = self.finished().usage.completion_tokens
            choices = choices[:-1]
        return self._events(choices)

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return not self._left

    def finished(self) -> GenerationFinished:
        """The ends of all choices, taken together."""
        return merged([end for end in self._ends if end is not None], self._n)

    def end(self) -> bytes:
        """The last choice's reason, the figures if they were asked for, and the end mark.

        `timings` ride on the last chunk, since clients merge them with the usage that is there.
        """
        finished = self.finished()
        timings = b',"timings":' + encode(timings_out(finished))
        thought = sum(writer.thought.tokens for writer in self._writers)
        usage = b',"usage":' + encode(usage_out(finished.usage, thought))
        (last,) = self._last
        if not self._include_usage:
            return self._head + last + b"]" + (usage if self._continuous_usage else b"") + timings + b"}\n\n" + DONE
        tail = b"]" + usage + b"}\n\n" if self._continuous_usage else self._tail
        return self._head + last + tail + self._head + b"]" + usage + timings + b"}\n\n" + DONE

    def _events(self, choices: Iterable[bytes]) -> bytes:
        tail = self._current_tail()
        return b"".join([self._head + choice + tail for choice in choices])

    def _current_tail(self) -> bytes:
        if not self._continuous_usage:
            return self._tail
        usage: Any = usage_out(Usage(self._prompt_tokens, self._completion_tokens))
        return b'],"usage":' + encode(usage) + b"}\n\n"
