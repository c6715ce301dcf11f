"""transformers with a GGUF file, in the data type that it recommends for one, behind `front`.

    python -m tripower.bench.peers.transformers --model FILE --port PORT --threads N --parallel N --context N

It has no batching of its own that joins running work, so requests that wait together are generated together, as a careful user would
do it: one `generate` for all of them, padded on the left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tripower.bench.peers.front import Piece, peer_options, serve_peer

GATHER_SECONDS = 0.02


class Asked:
    """One request: its prompt, and the pieces that come back. None ends them."""

    def __init__(self, prompt: str, tokens: int) -> None:
        self.prompt = prompt
        self.tokens = tokens
        self.pieces: SimpleQueue[Piece | Exception | None] = SimpleQueue()


class Batches:
    """Takes requests from any thread and generates those that wait together on one."""

    def __init__(self, model: str, threads: int, parallel: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        path = Path(model)
        self._parallel = parallel
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def generate(self, prompt: str, tokens: int) -> Iterator[Piece]:
        asked = Asked(prompt, tokens)
        self._asked.put(asked)
        while (piece := asked.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def _run(self) -> None:
        while True:
            batch = [self._asked.get()]
            try:
                while len(batch) < self._parallel:
                    batch.append(self._asked.get(timeout=GATHER_SECONDS))
            except Empty:
                pass
            try:
                self._generate(batch)
            except Exception as error:  # noqa: BLE001 - told to everyone who waits for it
                for asked in batch:
                    asked.pieces.put(error)
            for asked in batch:
                asked.pieces.put(None)

    def _generate(self, batch: list[Asked]) -> None:
        encoded = self._tokenizer([asked.prompt for asked in batch], return_tensors="pt", padding=True)
        lengths = encoded["attention_mask"].sum(dim=1).tolist()
        most = max(asked.tokens for asked in batch)
        streamer = _Streamer(batch, lengths, self._tokenizer)
        self._model.generate(**encoded, max_new_tokens=most, min_new_tokens=most, do_sample=False, streamer=streamer)


class _Streamer:
    """Gives each request its tokens as they are drawn."""

    def __init__(self, batch: list[Asked], lengths: list[int], tokenizer: Any) -> None:
        self._batch = batch
        self._lengths = lengths
        self._tokenizer = tokenizer
        self._drawn = -1  # the prompts come first

    def put(self, tokens: Any) -> None:
        self._drawn += 1
        if not self._drawn:
            return
        for asked, length, token in zip(self._batch, self._lengths, tokens.tolist(), strict=True):
            if self._drawn <= asked.tokens:
                asked.pieces.put(Piece(self._tokenizer.decode([token]), length, self._drawn))

    def end(self) -> None:
        """All tokens have come."""


def main() -> None:
    options = peer_options(__doc__)
    batches = Batches(options.model, options.threads, options.parallel)
    serve_peer(batches.generate, options.port)


if __name__ == "__main__":
    main()
