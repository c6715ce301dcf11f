"""Attention over pages, and what comes before it: `rope` turns and stores, `kernel` attends (with `blocks` and `softmax`), `kv` is where
a position lies in the pool.
"""
