"""What stands beside a `tokenizer.json`: named special tokens and the chat template.

`add_bos_token` and `add_eos_token` are not among it: what goes around a text is said by the tokenizer's post-processor, and
since version 5 transformers drops the two fields where there is a `tokenizer.json`.

Newer checkpoints have the template in a file of its own, which counts before the one in `tokenizer_config.json`; some have
several by name, of which `default` is for conversations.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tripower.backends.safetensors.checkpoint import Checkpoint
from tripower.backends.safetensors.documents import BYTES_MAX, decode_object, refuse
from tripower.backends.safetensors.fields import Fields

CONFIG = "tokenizer_config.json"
NAMES_OF_OLD = "special_tokens_map.json"
TEMPLATE = "chat_template.jinja"
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")
TOKEN_CHARACTERS_MAX = 1_024
OTHERS_MAX = 65_536


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`named` has the texts of those of `NAMED` that exist."""

    named: dict[str, str]
    others: tuple[str, ...]
    template: str


def read_settings(checkpoint: Checkpoint) -> TokenizerSettings:
    """Raises `ModelRefused` naming file and field. Blocks for small reads."""
    config, old = (_fields(checkpoint, name) for name in (CONFIG, NAMES_OF_OLD))
    texts = {name: _text(config if name in config else old, name) for name in NAMED}
    template = checkpoint.document(TEMPLATE)
    return TokenizerSettings(
        named={name: text for name, text in texts.items() if text},
        others=tuple(text for fields in (old, config) for name in LISTS for text in _texts(fields, name)),
        template=_template(config) if template is None else _decode(template),
    )


def _fields(checkpoint: Checkpoint, name: str) -> Fields:
    data = checkpoint.document(name)
    return Fields({} if data is None else decode_object(data, name), name)


def _text(fields: Fields, name: str) -> str:
    return _token_text(fields.values.get(name, ""), fields.field(name))


def _texts(fields: Fields, name: str) -> list[str]:
    """Texts of a list of tokens, or of an object with a token for each name."""
    stated = fields.values.get(name, [])
    values = list(stated.values()) if isinstance(stated, dict) else stated
    if not isinstance(values, list):
        raise refuse("bad_type", fields.field(name), "is not a list")
    if len(values) > OTHERS_MAX:
        raise refuse("limit_exceeded", fields.field(name), f"has more than {OTHERS_MAX} items")
    return [_token_text(value, fields.field(name)) for value in values]


def _token_text(value: Any, field: str) -> str:
    """A token is its text, or an object with the text as `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str) or len(text) > TOKEN_CHARACTERS_MAX:
        raise refuse("bad_type", field, f"is not the text of a token, of at most {TOKEN_CHARACTERS_MAX} characters")
    return text


def _template(config: Fields) -> str:
    stated = config.values.get("chat_template", "")
    if isinstance(stated, list):
        named = {each.get("name"): each.get("template") for each in stated if isinstance(each, dict)}
        stated = named.get("default") or ""
    if not isinstance(stated, str):
        raise refuse("bad_type", config.field("chat_template"), "is neither a template nor a list of named ones")
    if len(stated) > BYTES_MAX[TEMPLATE]:
        raise refuse("limit_exceeded", config.field("chat_template"), f"has more than {BYTES_MAX[TEMPLATE]} characters")
    return stated


def _decode(template: bytes) -> str:
    try:
        return template.decode()
    except UnicodeDecodeError as error:
        raise refuse("invalid_utf8", TEMPLATE, "is not valid UTF-8") from error
