"""The compilation of CUDA C++ at run time, as a verb of a device.

Compiling itself needs no device, and is in ``_compiling``.
"""
