"""The draw of a token without Python: `backends.sampling` in native code, with the same semantics and the same random numbers.

`settings` is what Python fills in for each sequence, `draw` the kernel and the order of its stages; `penalties`, `passes` (whole-row
arithmetic), `filters` (top-k, top-p, min-p) and `philox` are the stages. `report` computes what log probabilities are made of. Everything but the plain greedy path is float64.
"""
