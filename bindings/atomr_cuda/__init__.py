"""The CUDA libraries as ctypes tables.

One module for each library (``driver``, ``nvrtc``, ...), one line for each C function. Importing any of them loads no
shared library: a library is searched when its first function is called. ``atomr_sim`` offers the same tables in
Python for machines without a GPU. This package does not depend on its users, of which ``atomr_sim`` is one.
"""

from ._library import CudaError, Function, Library, LibraryMissing, SymbolMissing, ValueFunction, Variable, gpu_is_here

__all__ = [
    "CudaError",
    "Function",
    "Library",
    "LibraryMissing",
    "SymbolMissing",
    "ValueFunction",
    "Variable",
    "gpu_is_here",
]
