"""The compilation of CUDA C++ at run time, as a verb of a device."""
