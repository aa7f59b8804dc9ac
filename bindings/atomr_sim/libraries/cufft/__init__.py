"""The simulated cuFFT: its plans, their layouts, and the transforms by scipy."""
