"""Products of matrices with epilogues by cuBLASLt.

Products without epilogues in the formats of cuBLAS are in ``blas``.
"""
