"""The worker process that owns a CUDA context, and the parent's way to start it.

No module of this package imports trio, numpy or attrs, so a CUDA worker stays small and starts fast.
"""
