"""The worker process that owns a CUDA context, and the ways to reach it from the user's process.

No module of this package imports trio, numpy or attrs, so a CUDA worker stays small and starts fast.
"""
