"""The simulated libcuda: a process's devices, memory, streams and graphs, and the functions of the table.

What kernels compute is in ``engine``; the other libraries of CUDA are in ``libraries``.
"""
