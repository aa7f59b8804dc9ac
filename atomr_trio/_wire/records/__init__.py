"""The records that several layers need: memory and copies, launches, marks, shared arrays, calls of libraries.

Those of one library alone are in its folder. A module of this folder makes no calls: those are in the engines.
"""
