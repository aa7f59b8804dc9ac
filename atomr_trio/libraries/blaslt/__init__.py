"""Products of matrices with epilogues by cuBLASLt."""
