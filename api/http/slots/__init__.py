"""`GET /slots`: the seats of the batches, as llama-server shows them."""
