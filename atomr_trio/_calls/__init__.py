"""Calls: verbs written once and called in two forms, calls that are repeated, and the short way of a launch.

What a verb of one library takes and checks is in ``libraries``; how commands are ordered and sent, in ``_generation``.
"""
