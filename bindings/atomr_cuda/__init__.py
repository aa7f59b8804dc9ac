"""The CUDA libraries as ctypes tables.

One module per library (``driver``, ``nvrtc``, ...), one line per C function. Importing any of them loads no shared
library: a library is looked for when its first function is called. ``sim`` offers the same tables in Python for
machines without a GPU. This package knows nothing of what is built on it.
"""

from ._library import CudaError, Function, Library, LibraryMissing, SymbolMissing, ValueFunction, gpu_is_here

__all__ = ["CudaError", "Function", "Library", "LibraryMissing", "SymbolMissing", "ValueFunction", "gpu_is_here"]
