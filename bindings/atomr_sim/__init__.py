"""A simulated GPU for machines that have none: the tables of ``atomr_cuda`` in Python and numpy.

``install`` replaces libcuda by the simulated driver, and cuBLAS and the other libraries by simulated ones. Everything
above works as with a GPU. Device memory is a memory file, so descriptors, mapping and the end of a process work as on
hardware. Kernels are the PTX that NVRTC emits. A wild pointer is a status, and from then on the process is lost.
``inject`` injects a fault by name, and ``withdraw`` removes it. ``calls`` counts the calls of each function of a
library. This package knows ``atomr_cuda``, and nothing of the users of either.
"""

from .driver.functions import calls, inject, install, withdraw

__all__ = ["calls", "inject", "install", "withdraw"]
