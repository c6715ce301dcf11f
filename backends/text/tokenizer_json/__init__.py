"""The text layer of a checkpoint, from its `tokenizer.json` and the files beside it."""
