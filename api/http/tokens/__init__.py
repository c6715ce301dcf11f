"""Endpoints about text and tokens, which need a model's tokenizer and none of its weights."""
