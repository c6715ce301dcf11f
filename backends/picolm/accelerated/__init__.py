"""The engine on an accelerator, through torch: static shapes for decode, CUDA graphs, int4 weights, draws on the device.

Every line but the capture itself runs on a processor too, and that is where the tests run it. `load` makes a model resident, `engine`
plans steps, `model` computes them, `graph_cache` decides which of them are replayed instead of launched.
"""
