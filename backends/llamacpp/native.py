"""A model and its context in llama.cpp: the native handles, and the few things that are done with them.

Settings are those of llama.cpp's own server wherever they decide about speed: KV in half precision, flash attention where the
library sees fit, weights mapped and repacked as it likes, batches of 2048 rows in passes of 512, and a KV stream for each sequence
(shared streams make every row look at everybody's positions, and cost a seventh of the speed at 16 sequences here). Two differ. A
sliding window keeps all its positions, since a cache that has dropped some cannot be trimmed to any length; and room for logits is
made for one row of each sequence, not of each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tripower.backends.llamacpp.batch import Batch
from tripower.backends.llamacpp.library import Library
from tripower.runtime.kernel.errors import DeviceFailed, ModelRefused

BATCH_ROWS_MAX, PASS_ROWS_MAX = 2048, 512
POSITIONS_UNIT = 256
"""A context is made in multiples of this."""

NO_SLOT = 1
"""What `llama_decode` answers when there is no place for the rows; memory is then as before."""


def load_model(library: Library, path: str, *, gpu_layers: int, progress: Callable[[float], None]) -> Any:
    """The handle of a model, for `llama_model_free`. Blocks until all is read; `progress` is called on this thread.

    Raises `ModelRefused` with what llama.cpp logged, or what `progress` raised, which ends the load.
    """
    ffi, api = library.ffi, library.api
    raised: list[BaseException] = []

    def report(fraction: float, _data: Any) -> bool:
        try:
            progress(fraction)
        except BaseException as error:  # noqa: BLE001 - native code is below: it travels as a value until that has returned
            raised.append(error)
        return not raised

    callback = ffi.callback("bool(float, void *)", report)
    parameters = api.llama_model_default_params()
    parameters.n_gpu_layers = gpu_layers
    parameters.progress_callback = callback
    library.take_complaints()
    model = api.llama_model_load_from_file(path.encode(), parameters)
    if raised:
        if model != ffi.NULL:
            api.llama_model_free(model)
        raise raised[0]
    if model == ffi.NULL:
        reason = library.take_complaints()
        unknown = "unknown model architecture" in reason
        raise ModelRefused(
            f"llama.cpp does not load {path}: {reason or 'it gives no reason'}",
            code="unsupported_architecture" if unknown else None,
        )
    return model


def check_kind(library: Library, model: Any) -> None:
    """Raise `ModelRefused` (`unsupported_architecture`) for a model whose state cannot be trimmed, or that does not write text."""
    api = library.api
    for kind, found in (
        ("keeps a recurrent state", api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)),
        ("writes by diffusion", api.llama_model_is_diffusion(model)),
        ("has an encoder", api.llama_model_has_encoder(model)),
    ):
        if found:
            raise ModelRefused(
                f"the backend llamacpp runs decoders with a full attention state only; this model {kind}",
                code="unsupported_architecture",
                param="general.architecture",
            )


class Context:
    """The states of up to `sequences` sequences, numbered from 0. Belongs to the thread that made it."""

    def __init__(self, library: Library, model: Any, *, positions: int, sequences: int, threads: int) -> None:
        """Allocate all that steps will need. Raises `ModelRefused` (`out_of_memory`) with what llama.cpp logged."""
        self._library = library
        api = self._api = library.api
        parameters = api.llama_context_default_params()
        parameters.n_ctx = padded(positions) * sequences
        parameters.n_batch, parameters.n_ubatch = BATCH_ROWS_MAX, PASS_ROWS_MAX
        parameters.n_seq_max = parameters.n_outputs_max = sequences
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.swa_full = True
        parameters.kv_unified = False
        library.take_complaints()
        self._handle = api.llama_init_from_model(model, parameters)
        if self._handle == library.ffi.NULL:
            reason = library.take_complaints()
            raise ModelRefused(
                f"llama.cpp makes no context of {sequences} times {positions} positions: {reason or 'it gives no reason'}",
                code="out_of_memory",
            )
        self._memory = api.llama_get_memory(self._handle)
        self._width = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)))
        self._window = int(api.llama_model_n_swa(model))
        self.batch = Batch(library, int(api.llama_n_batch(self._handle)))
        self.outputs_max = sequences
        assert api.llama_n_ctx_seq(self._handle) >= positions and api.llama_n_seq_max(self._handle) == sequences

    @property
    def words(self) -> dict[str, int]:
        """What native code needs in order to decode a batch by itself: addresses, and the number of logits in a row."""
        ffi = self._library.ffi
        pointers = {
            "context": self._handle,
            "batch": ffi.addressof(self.batch.native),
            "decode": self._api.llama_decode,
            "logits_of": self._api.llama_get_logits,
        }
        addresses = {name: int(ffi.cast("uintptr_t", pointer)) for name, pointer in pointers.items()}
        return self.batch.words | addresses | {"width": self._width}

    def decode(self) -> None:
        """Evaluate the batch. Raises `DeviceFailed`; some of the rows may then have been evaluated."""
        self.check(self._api.llama_decode(self._handle, self.batch.native))

    def check(self, status: int) -> None:
        """Raise `DeviceFailed` for what `llama_decode` answered, unless that is 0."""
        if status == 0:
            return
        reason = self._library.take_complaints()
        code = "state_memory_exhausted" if status == NO_SLOT else None
        raise DeviceFailed(f"llama.cpp failed a step with status {status}: {reason or 'it gives no reason'}", code=code)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """The logits of the last batch's drawing rows, float32 [rows, vocabulary], in their order. Valid until the next `decode`."""
        values = self._api.llama_get_logits(self._handle)
        data = self._library.ffi.buffer(values, rows * self._width * 4)
        return np.frombuffer(data, np.float32).reshape(rows, self._width)

    def trim(self, sequence: int, length: int) -> None:
        """Forget positions from `length` on. Raises `DeviceFailed` (`state_refused`) unless what is left is then exactly that.

        That the library reports success proves nothing: with a cache that has dropped old positions it does so as well.
        """
        done = self._api.llama_memory_seq_rm(self._memory, sequence, length, -1)
        last = self._api.llama_memory_seq_pos_max(self._memory, sequence)
        first = self._api.llama_memory_seq_pos_min(self._memory, sequence)
        if not done or last != length - 1 or first > max(0, length - self._window if self._window else 0):
            raise DeviceFailed(
                f"llama.cpp cannot trim a state to {length} positions: it has {first} to {last}", code="state_refused"
            )

    def copy(self, source: int, target: int) -> None:
        """Give `target`, which is empty, all positions of `source`. The copy itself is made by the next `decode`."""
        self._api.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def close(self) -> None:
        """Free it. Idempotent."""
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None


def padded(positions: int) -> int:
    """The positions that a context of this many has memory for."""
    return -(-positions // POSITIONS_UNIT) * POSITIONS_UNIT
