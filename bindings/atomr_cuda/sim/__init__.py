"""A GPU for machines that have none: the tables of ``atomr_cuda`` in Python and numpy.

``install`` puts the simulated driver where libcuda stands, and simulated libraries where cuBLAS and its like stand.
Everything above works as with a GPU: device memory is a memory file, so descriptors, mapping, and the death of a
process mean what they mean on hardware; kernels are the PTX that NVRTC emits; a wild pointer is a status, and from then
on the process is lost. ``inject`` asks for a fault by name, and ``withdraw`` takes that back; ``calls`` says how often
each function of a library was called.
"""

from .driver import calls, inject, install, withdraw

__all__ = ["calls", "inject", "install", "withdraw"]
