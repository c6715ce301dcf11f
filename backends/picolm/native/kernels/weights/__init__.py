"""Weights as kernels read them: `formats` says what a strip looks like, `packing` makes strips from a file's `blocks`, `strip_reader` emits
the reading of one, `embed` gives a token's row.
"""
