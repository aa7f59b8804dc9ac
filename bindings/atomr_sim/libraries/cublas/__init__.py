"""The simulated cuBLAS."""
