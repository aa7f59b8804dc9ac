"""The simulated cuBLASLt."""
