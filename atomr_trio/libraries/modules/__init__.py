"""Modules, kernels and launches.

What compiles and links is in ``_compiling``. The short way of a launch is in ``_calls``: repeated calls take it too.
"""
