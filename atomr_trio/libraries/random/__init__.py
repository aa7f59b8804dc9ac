"""Random numbers by cuRAND, and by kernels of our own for what it leaves out, with the names of ``numpy.random``."""
