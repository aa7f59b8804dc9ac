"""Dense linear algebra by cuBLAS.

What the solver and cuBLASLt need too, of matrices, scalars and stacks, is in ``_calls/linear.py``.
"""
