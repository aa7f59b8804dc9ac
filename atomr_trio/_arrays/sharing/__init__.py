"""Arrays shared with other libraries of this process: DLPack and ``__cuda_array_interface__``, both ways.

This is the one folder of the trio side that calls the CUDA driver (``consumer.py``), and only when a program shares an
array. What an array itself says of its form is in ``dlpack.py``; who waits for whom is in ``fences.py``.
"""
