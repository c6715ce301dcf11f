"""llama.cpp's C API, opened once in a process.

Declarations are read at run time and nothing is compiled, so nobody checks that structs have the layout that the library was built
with. Two things stand in for a compiler: every function that is used must be exported, and the structs of default parameters, which
the library fills in, must show values that are known. Whoever opens a library in a process that matters has had it probed first.

What llama.cpp logs goes into a short ring, warnings and errors only, from which a refusal takes its reason. Nothing is printed.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tripower.backends.llamacpp.pair import Pair, incompatible

FUNCTIONS = (
    "backend_init",
    "context_default_params",
    "decode",
    "free",
    "get_logits",
    "get_memory",
    "init_from_model",
    "log_set",
    "memory_seq_cp",
    "memory_seq_pos_max",
    "memory_seq_pos_min",
    "memory_seq_rm",
    "model_default_params",
    "model_free",
    "model_get_vocab",
    "model_has_encoder",
    "model_is_diffusion",
    "model_is_hybrid",
    "model_is_recurrent",
    "model_load_from_file",
    "model_n_params",
    "model_n_swa",
    "model_size",
    "n_batch",
    "n_ctx_seq",
    "n_seq_max",
    "print_system_info",
    "supports_gpu_offload",
    "version",
    "vocab_n_tokens",
)
"""All that is used, without the prefix `llama_`."""

CONTEXT_CANARY = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}
MODEL_CANARY = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
"""Defaults as the tried builds fill them in, spread over the structs from the first field to the last."""

LOG_LINES_MAX, LOG_LINE_BYTES_MAX = 32, 400
WARN, ERROR, CONTINUED = 3, 4, 5  # levels of ggml's log


class Library:
    """The two halves of a pair: `ffi` makes C objects, `api` has the functions. Shared by everybody in the process, never closed.

    Its engines each belong to a lane; the library itself may be used from any thread.
    """

    def __init__(self, pair: Pair) -> None:
        """Open, check, initialise. Blocks for some tenths of a second. Raises `ModelRefused` (`native_incompatible`)."""
        self.pair = pair
        module = _execute(pair.declarations)
        self.ffi = module.ffi
        try:
            self.api = module.ffi.dlopen(str(pair.library))
        except OSError as error:
            raise incompatible(f"{pair.library.name} does not load: {error}") from error
        self._check_functions()
        self.check_defaults("llama_context_params", self.api.llama_context_default_params(), CONTEXT_CANARY)
        self.check_defaults("llama_model_params", self.api.llama_model_default_params(), MODEL_CANARY)
        self._log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._log_level = 0
        self._log_callback = self.ffi.callback("void(enum ggml_log_level, const char *, void *)", self._on_log)
        self.api.llama_log_set(self._log_callback, self.ffi.NULL)
        self.api.llama_backend_init()

    def _check_functions(self) -> None:
        missing = [name for name in FUNCTIONS if not self._has(f"llama_{name}")]
        if missing:
            raise incompatible(f"{self.pair.library.name} does not have llama_{missing[0]} and {len(missing) - 1} more")

    def _has(self, name: str) -> bool:
        try:
            getattr(self.api, name)
        except AttributeError:
            return False
        return True

    @staticmethod
    def check_defaults(struct: str, found: Any, expected: Mapping[str, object]) -> None:
        """Raise `ModelRefused` (`native_incompatible`) unless the struct shows these values."""
        for field, value in expected.items():
            shown = getattr(found, field, None)
            if shown != value:
                raise incompatible(f"another layout than declared: {struct}.{field} is {shown}, not {value}")

    def version(self) -> str:
        """What the library calls its own version."""
        return self.text(self.api.llama_version())

    def text(self, characters: Any) -> str:
        """A C string."""
        return "" if characters == self.ffi.NULL else bytes(self.ffi.string(characters)).decode(errors="replace")

    def take_complaints(self) -> str:
        """What was logged as a warning or an error since the last call, in one line; empty if nothing."""
        lines = list(self._log)
        self._log.clear()
        return "; ".join(line.strip() for line in lines if line.strip())

    def _on_log(self, level: int, text: Any, _data: Any) -> None:
        if level != CONTINUED:
            self._log_level = level
        if self._log_level in (WARN, ERROR):
            self._log.append(bytes(self.ffi.string(text, LOG_LINE_BYTES_MAX)).decode(errors="replace"))


_opened: dict[Pair, Library] = {}
_lock = threading.Lock()


def open_library(pair: Pair) -> Library:
    """The library of this pair, opened at the first call. Any thread. Raises `ModelRefused` (`native_incompatible`)."""
    with _lock:
        if pair not in _opened:
            _opened[pair] = Library(pair)
        return _opened[pair]


def _execute(declarations: Path) -> Any:
    """Only the declarations' module, never its package, which would load a library of its own."""
    spec = importlib.util.spec_from_file_location("tripower_llama_declarations", declarations)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise incompatible(f"the declarations in {declarations.name} cannot be read: {error}") from error
    return module
