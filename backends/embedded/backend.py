"""Makes a sentence encoder resident: MiniLM and its kin, from the folder that sentence-transformers writes.

Small files first, then the tokenizer, the headers and shapes of the weights, and only then the weights. A first vector must be finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from tripower.backends.embedded.bert import Bert
from tripower.backends.embedded.engine import EmbeddedEngine
from tripower.backends.embedded.shape import folder_of, read_shape
from tripower.backends.embedded.tokenizer import read_tokenizer
from tripower.backends.embedded.weights import FLOAT_BYTES, elements, find_weights, read_weights
from tripower.backends.refusing import refusing
from tripower.backends.safetensors.shards import open_shards
from tripower.runtime.engine import LoadSpecification, Progress
from tripower.runtime.engine.encoder import LoadedEncoder
from tripower.runtime.host import ModelNeeds
from tripower.runtime.kernel.errors import ModelRefused, TripowerError


class EmbeddedBackend:
    """A `Backend` for sentence encoders in SafeTensors, on this machine's processor."""

    name = "embedded"

    def load(self, specification: LoadSpecification, progress: Progress) -> Iterator[LoadedEncoder | None]:
        """Yield None at boundaries and the model last. Raises `ModelRefused`. Blocks between boundaries for one tensor.

        The rows' limit is the model's own: `specification.context` is about conversations.
        """
        with refusing(specification.name), ExitStack() as opened:
            folder = folder_of(specification.source)
            shape = read_shape(folder)
            text = read_tokenizer(folder, shape.vocabulary)
            yield None
            shards = [opened.enter_context(shard) for shard in open_shards(folder)]
            places = find_weights(shards, shape)
            weights = yield from read_weights(places, lambda done: progress("weights", done))
            engine = EmbeddedEngine(Bert(shape, weights), threads=specification.threads)
            _self_test(engine)
            progress("self-test", 1.0)
            yield LoadedEncoder(engine, text)


def estimate_needs(source: str) -> ModelNeeds:
    """What a model will take, from its configuration: it keeps no states. Blocks for small reads. Raises `ModelRefused`."""
    shape = read_shape(folder_of(source))
    return ModelNeeds(context_max=shape.tokens_max, state_bytes_per_token=0, weight_bytes=elements(shape) * FLOAT_BYTES)


def _self_test(engine: EmbeddedEngine) -> None:
    """Encode one token. Raises `ModelRefused` (`self_test_failed`) when the vector is not finite."""
    try:
        for _ in engine.encode([(0,)], np.empty((1, engine.dimensions), np.float32)):
            pass
    except TripowerError as error:
        raise ModelRefused(f"the model failed its self-test: {error.message}", code="self_test_failed") from error
