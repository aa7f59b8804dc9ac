"""CUDA kernels of every kind, each with a numpy reference: the table that `test_kernels_75.py` and its like run.

A family is a CUDA C++ file and the Python file of the same name, which holds the inputs and the references.
`case.py` says what a case is; `collection.py` gathers them all.
"""
