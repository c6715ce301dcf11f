"""Ask llama.cpp what it makes of a model file: a reference for tests, and the peer of benches that need no server.

Run as a child process, so that a crash in native code ends this process and not the one that asks:

    python -m tripower.bench.peers.llamacpp_child tokenize MODEL < requests.json > ids.json
    python -m tripower.bench.peers.llamacpp_child vocabulary MODEL > vocabulary.json
    python -m tripower.bench.peers.llamacpp_child logits MODEL --out logits.npy < ids.json
    python -m tripower.bench.peers.llamacpp_child load MODEL > seconds.json

The wheel `llama-cpp-py-sync` has cffi declarations of the C API, but its library wants a newer glibc than many machines have;
`xllamacpp` is a portable build whose extension module exports the same API. So the declarations of the one are loaded over the
library of the other, which is sound only for the pinned neighbouring builds: default parameter structs are compared with known
values first. Only the declarations module is executed, never its package, which would load its own library.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONTEXT_CANARY = {
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "swa_full": True,
    "offload_kqv": True,
    "type_k": 1,
}
MODEL_CANARY = {"n_gpu_layers": -1, "use_extra_bufts": True, "vocab_only": False, "load_mtp": False}
KV_TYPES = {"f32": 0, "f16": 1}  # ids of ggml's types
FLASH_ATTENTION_OFF = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("command", choices=["tokenize", "vocabulary", "logits", "load"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, help="where `logits` writes float32 [positions, vocabulary] in npy form")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048, help="positions that `load` makes room for")
    parser.add_argument(
        "--kv", choices=sorted(KV_TYPES), default="f16", help="type of the KV cache; f16 is llama.cpp's default"
    )
    parser.add_argument("--plain", action="store_true", help="without flash attention and without repacked weights")
    options = parser.parse_args()
    library = Library()
    match options.command:
        case "tokenize":
            model = library.load_model(options.model, vocab_only=True)
            json.dump(library.tokenize_all(model, json.load(sys.stdin)), sys.stdout)
        case "vocabulary":
            model = library.load_model(options.model, vocab_only=True)
            json.dump(library.vocabulary(model), sys.stdout)
        case "logits":
            model = library.load_model(options.model, vocab_only=False, repack=not options.plain)
            library.write_logits(model, json.load(sys.stdin), options)
        case "load":
            json.dump({"load_seconds": library.time_load(options)}, sys.stdout)


class Library:
    """llama.cpp's C API through cffi. Handles are never freed: the process ends right after its one answer."""

    def __init__(self) -> None:
        self.ffi, self.api = _open_library()
        self._silence = self.ffi.callback("void(enum ggml_log_level, const char *, void *)", lambda level, text, data: None)
        self.api.llama_log_set(self._silence, self.ffi.NULL)
        self.api.llama_backend_init()
        _check(self.api.llama_model_default_params(), MODEL_CANARY)
        _check(self.api.llama_context_default_params(), CONTEXT_CANARY)

    def load_model(self, path: Path, *, vocab_only: bool, repack: bool = True) -> Any:
        parameters = self.api.llama_model_default_params()
        parameters.vocab_only = vocab_only
        parameters.n_gpu_layers = 0
        parameters.use_extra_bufts = repack
        model = self.api.llama_model_load_from_file(str(path).encode(), parameters)
        if model == self.ffi.NULL:
            sys.exit(f"llama.cpp refused {path}")
        return model

    def time_load(self, options: argparse.Namespace) -> float:
        """Seconds until a model is loaded, has a context and has evaluated a token. The library itself was opened before."""
        began = time.perf_counter()
        model = self.load_model(options.model, vocab_only=False)
        context = self._open_context(model, options.context, options)
        batch = self.api.llama_batch_init(1, 0, 1)
        self._fill(batch, [0], 0)
        if status := self.api.llama_decode(context, batch):
            sys.exit(f"llama_decode answered {status}")
        return time.perf_counter() - began

    def tokenize_all(self, model: Any, requests: list[dict[str, Any]]) -> list[list[int]]:
        """Ids for each `{"text", "add_special", "parse_special"}`; the flags default to False."""
        vocabulary = self.api.llama_model_get_vocab(model)
        return [self._tokenize(vocabulary, **request) for request in requests]

    def _tokenize(self, vocabulary: Any, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        ids = self.ffi.new("llama_token[]", room)
        count = self.api.llama_tokenize(vocabulary, data, len(data), ids, room, add_special, parse_special)
        if count < 0:
            room = -count
            ids = self.ffi.new("llama_token[]", room)
            count = self.api.llama_tokenize(vocabulary, data, len(data), ids, room, add_special, parse_special)
        assert count >= 0
        return list(ids[0:count])

    def vocabulary(self, model: Any) -> dict[str, Any]:
        """Sizes, special ids, flags, the end-of-generation set and every token's bytes in hex (special ones rendered as empty)."""
        vocabulary = self.api.llama_model_get_vocab(model)
        count = self.api.llama_vocab_n_tokens(vocabulary)
        return {
            "tokens": count,
            "bos": self.api.llama_vocab_bos(vocabulary),
            "eos": self.api.llama_vocab_eos(vocabulary),
            "add_bos": bool(self.api.llama_vocab_get_add_bos(vocabulary)),
            "add_eos": bool(self.api.llama_vocab_get_add_eos(vocabulary)),
            "end_tokens": [i for i in range(count) if self.api.llama_vocab_is_eog(vocabulary, i)],
            "control_tokens": [i for i in range(count) if self.api.llama_vocab_is_control(vocabulary, i)],
            "pieces": [self._piece(vocabulary, i).hex() for i in range(count)],
        }

    def _piece(self, vocabulary: Any, token: int) -> bytes:
        room = 256
        buffer = self.ffi.new("char[]", room)
        count = self.api.llama_token_to_piece(vocabulary, token, buffer, room, 0, False)
        if count < 0:
            room = -count
            buffer = self.ffi.new("char[]", room)
            count = self.api.llama_token_to_piece(vocabulary, token, buffer, room, 0, False)
        return bytes(self.ffi.buffer(buffer, max(count, 0)))

    def write_logits(self, model: Any, tokens: list[int], options: argparse.Namespace) -> None:
        """Evaluate the tokens as one sequence, in chunks of the micro-batch, and write the logits of every position."""
        import numpy as np

        context = self._open_context(model, len(tokens), options)
        width = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(model))
        logits = np.lib.format.open_memmap(options.out, mode="w+", dtype=np.float32, shape=(len(tokens), width))
        chunk = 512
        batch = self.api.llama_batch_init(chunk, 0, 1)
        for start in range(0, len(tokens), chunk):
            rows = tokens[start : start + chunk]
            self._fill(batch, rows, start)
            status = self.api.llama_decode(context, batch)
            if status:
                sys.exit(f"llama_decode answered {status} at position {start}")
            for row in range(len(rows)):
                values = self.api.llama_get_logits_ith(context, row)
                logits[start + row] = np.frombuffer(self.ffi.buffer(values, width * 4), dtype=np.float32)
        logits.flush()

    def _open_context(self, model: Any, positions: int, options: argparse.Namespace) -> Any:
        parameters = self.api.llama_context_default_params()
        parameters.n_ctx = -(-max(positions, 256) // 256) * 256
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = options.threads
        parameters.type_k = parameters.type_v = KV_TYPES[options.kv]
        if options.plain:
            parameters.flash_attn_type = FLASH_ATTENTION_OFF
        context = self.api.llama_init_from_model(model, parameters)
        if context == self.ffi.NULL:
            sys.exit("llama.cpp made no context")
        return context

    def _fill(self, batch: Any, rows: list[int], start: int) -> None:
        batch.n_tokens = len(rows)
        for row, token in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = start + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = 1


def _open_library() -> tuple[Any, Any]:
    declarations = importlib.util.find_spec("llama_cpp_py_sync")
    library = importlib.util.find_spec("xllamacpp")
    if declarations is None or library is None:
        sys.exit("the llamacpp extra is not installed")
    [folder] = declarations.submodule_search_locations or []
    spec = importlib.util.spec_from_file_location("llama_declarations", Path(folder) / "_cffi_bindings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [folder] = library.submodule_search_locations or []
    [extension] = Path(folder).glob("xllamacpp*.so")
    return module.ffi, module.ffi.dlopen(str(extension))


def _check(parameters: Any, expected: Mapping[str, object]) -> None:
    for field, value in expected.items():
        found = getattr(parameters, field)
        if found != value:
            sys.exit(f"struct layout differs: {field} is {found}, expected {value}")


if __name__ == "__main__":
    main()
