"""Loading and unloading models, in the words of llama-server's router."""
