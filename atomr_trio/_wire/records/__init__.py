"""The records that cross between the two processes, and the functions of libraries that they name.

A module of this folder has no calls of a library: those are in ``_worker/engines``.
"""
