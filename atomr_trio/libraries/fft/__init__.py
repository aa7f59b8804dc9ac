"""Fourier transforms by cuFFT, with the names and the meanings of ``numpy.fft``."""
