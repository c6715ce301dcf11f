"""What the probe's child process does: use the pair on a tiny model of random weights, as a server would on a real one.

    python -m tripower.backends.llamacpp.rehearsal DECLARATIONS LIBRARY

Prints one line of JSON: `{"version": …, "system": …}`, or `{"refused": …}` with the reason. Whatever else may happen here, an abort
in native code above all, happens to this process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tripower.backends.llamacpp.engine import LlamacppEngine
from tripower.backends.llamacpp.library import Library
from tripower.backends.llamacpp.native import load_model
from tripower.backends.llamacpp.pair import Pair, incompatible
from tripower.runtime.engine import SamplingParameters, StepRow
from tripower.runtime.kernel.errors import TripowerError

WIDTH, VOCABULARY, CONTEXT = 32, 64, 256
GREEDY = SamplingParameters(temperature=0.0)
TOKENS = (1, 2, 3, 5, 8)


def main() -> None:
    declarations, library = (Path(argument) for argument in sys.argv[1:3])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _leave_no_core()
    try:
        print(json.dumps(rehearse(Pair(declarations, library, "", ""))))
    except TripowerError as error:
        print(json.dumps({"refused": error.message}))


def _end_with_parent() -> None:
    """The server may be killed while native code hangs here: its end of the pipe is then closed, and this process ends too."""
    while os.read(0, 1):
        pass
    os._exit(1)


def rehearse(pair: Pair) -> dict[str, Any]:
    """Open the library, load the tiny model, run a few steps. Raises `ModelRefused` when something is not as it should be."""
    library = Library(pair)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tiny.gguf")
        write_tiny(path)
        model = load_model(library, str(path), gpu_layers=0, progress=lambda fraction: None)
        engine = LlamacppEngine(library, model, architecture="llama", context_max=CONTEXT, sequences_max=2, threads=1)
        _check_steps(engine)
        engine.close()
    return {
        "version": library.version(),
        "system": library.text(library.api.llama_print_system_info()).strip(" |"),
        "gpu": bool(library.api.llama_supports_gpu_offload()),
    }


def _check_steps(engine: LlamacppEngine) -> None:
    """The same prompt gives the same token alone, beside another sequence, and after a trim."""
    for sequence in (7, 8):
        engine.open_sequence(sequence)
    [alone] = engine.step([StepRow(7, 0, TOKENS, draw=True, sampling=GREEDY)])
    engine.trim(7, len(TOKENS) - 1)
    again = engine.step(
        [
            StepRow(7, len(TOKENS) - 1, TOKENS[-1:], draw=True, sampling=GREEDY),
            StepRow(8, 0, TOKENS, draw=True, sampling=GREEDY),
        ]
    )
    if engine.info.vocabulary_size != VOCABULARY or again != [alone, alone]:
        raise incompatible(f"a rehearsal gave other tokens than it should: {alone} alone, then {again}")


def write_tiny(path: Path) -> None:
    """A llama of one layer with random weights and no vocabulary, some fifty kilobytes."""
    import gguf  # takes a tenth of a second

    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, CONTEXT),
        (writer.add_embedding_length, WIDTH),
        (writer.add_block_count, 1),
        (writer.add_feed_forward_length, 2 * WIDTH),
        (writer.add_head_count, 2),
        (writer.add_vocab_size, VOCABULARY),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(11)
    square, wide = (WIDTH, WIDTH), (2 * WIDTH, WIDTH)
    shapes = {
        "token_embd": (VOCABULARY, WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.ffn_norm": (WIDTH,),
    }
    shapes |= {f"blk.0.attn_{name}": square for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": wide, "blk.0.ffn_up": wide, "blk.0.ffn_down": wide[::-1]}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _leave_no_core() -> None:
    try:
        import resource
    except ImportError:  # not a Unix: nothing to leave
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
