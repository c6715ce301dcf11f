"""mistral.rs, out of its wheel. The wheel has no server, so its `Runner` stands behind `front`.

    python -m tripower.bench.peers.mistralrs --model FILE --port PORT --threads N --parallel N --context N

Version 0.9.5 fails on processors when it evaluates several prompts of one length together ("input tensor is not contiguous"). Whether
the installed one does is tried first; if so, it runs one sequence at a time, which is the most that it can do without failing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tripower.bench.peers.front import Piece, peer_options, serve_peer

SENDING = threading.Lock()
"""A `Runner` cannot be borrowed by two threads at once; the streams that it returns are independent."""


def main() -> None:
    options = peer_options(__doc__)
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    runner = _load(options.model, options.parallel)
    if options.parallel > 1 and not _runs_batches(runner):
        print("several prompts at once fail: one sequence at a time", file=sys.stderr)
        runner = _load(options.model, 1)
    serve_peer(lambda prompt, tokens: _generate(runner, prompt, tokens), options.port)


def _load(model: str, sequences: int) -> Any:
    from mistralrs import Runner, Which

    path = Path(model)
    source: Any = Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
    return Runner(which=source, max_seqs=sequences, prefix_cache_n=0, token_source="none")


def _generate(runner: Any, prompt: str, tokens: int) -> Iterator[Piece]:
    from mistralrs import ChatCompletionRequest

    request = ChatCompletionRequest(
        messages=prompt, model="default", max_tokens=tokens, temperature=0.0, stream=True, ignore_eos=True
    )
    with SENDING:
        chunks = runner.send_chat_completion_request(request)
    for chunk in chunks:
        text = chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage
        yield Piece(text, usage.prompt_tokens, usage.completion_tokens) if usage else Piece(text)


def _runs_batches(runner: Any) -> bool:
    """Whether four prompts of one length can be asked at once."""
    failed = threading.Event()

    def ask(number: int) -> None:
        try:
            for _ in _generate(runner, f"Number {number} is", 2):
                continue
        except Exception:  # noqa: BLE001 - whatever it raises, it cannot do it
            failed.set()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return not failed.is_set()


if __name__ == "__main__":
    main()
