"""Dense solvers by cuSOLVER."""
