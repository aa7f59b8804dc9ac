"""Dense solvers by cuSOLVER: factors, equations, eigenvalues, with LAPACK's names and with numpy's.

Triangular systems without a factorization are in ``blas``.
"""
