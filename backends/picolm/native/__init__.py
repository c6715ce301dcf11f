"""The fast path: kernels emitted as LLVM IR for this machine, and a step that runs without Python.

Read in this order: `target` (what the machine has), `emit` (how IR is written here), `compile` (IR to code, cached), the kernels in
`kernels/`, and `executor` (how threads share a step).
"""
