"""`POST /v1/embeddings`: what may be asked, how it is answered, and the way between the two."""
