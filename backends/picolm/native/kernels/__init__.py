"""The kernels: each module emits functions of one kind, to be tested one by one against float64."""
