"""The simulated libraries besides libcuda, a package for each by the name of its table in ``atomr_cuda``.

What several of them need lies beside them: tables and arrays (``dense``), and the numbers of 8 bits (``float8``).
"""
