"""The other side of the process boundary: the worker process that owns a CUDA context, and how to reach it.

Nothing in this package imports trio, numpy or attrs, so that a started CUDA worker stays small and starts fast.
"""
