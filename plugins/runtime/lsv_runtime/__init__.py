"""Everything that computes: devices, attention, weights, layers, and the worker that runs a model on them.

The library that models, quantisers and platforms build on. The engine reaches it through ``ExecutorOffer``.
"""
