"""Dense linear algebra by cuBLAS."""
