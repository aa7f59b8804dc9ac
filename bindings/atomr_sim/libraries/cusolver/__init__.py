"""The simulated cuSOLVER."""
