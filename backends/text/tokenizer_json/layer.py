"""The text layer of a SafeTensors checkpoint."""

from __future__ import annotations

from tripower.backends.gguf.metadata import require_int, require_string
from tripower.backends.safetensors.checkpoint import Checkpoint
from tripower.backends.text.layer import TemplatedTextLayer, recommended_sampling
from tripower.backends.text.tokenizer_json.library import FILE
from tripower.backends.text.tokenizer_json.settings import NAMED, read_settings
from tripower.backends.text.tokenizer_json.tokenizer import JsonTokenizer
from tripower.runtime.kernel.errors import ModelRefused


class CheckpointTextLayer(TemplatedTextLayer):
    """Holds no reference to the checkpoint. `chat_template` replaces its own.

    Building takes a second or two for a large vocabulary and raises `ModelRefused`, naming file and field.
    """

    def __init__(self, checkpoint: Checkpoint, *, chat_template: str | None = None) -> None:
        recommended = recommended_sampling(checkpoint.metadata)
        settings = read_settings(checkpoint)
        data = checkpoint.document(FILE)
        if data is None:
            raise ModelRefused(
                f"{checkpoint.path} has no {FILE}: save the tokenizer with transformers, which writes one",
                code="missing_file",
                param=FILE,
            )
        architecture = require_string(checkpoint.metadata, "general.architecture")
        size = require_int(checkpoint.metadata, f"{architecture}.vocab_size")
        self.tokenizer = JsonTokenizer(data, settings, size=size, stated_ends=checkpoint.end_token_ids)
        vocabulary = self.tokenizer.vocabulary
        super().__init__(
            self.tokenizer,
            template=settings.template if chat_template is None else chat_template,
            end_tokens=vocabulary.end_tokens,
            recommended=recommended,
            special_texts={name: vocabulary.text(name) for name in NAMED},
            piece_characters_max=max(map(len, vocabulary.texts.values())),
        )
