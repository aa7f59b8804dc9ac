"""One folder per library: its records and its engine, which the worker loads, and its verbs, which the user calls.

A verb makes every check that can be made before anything is sent. What several libraries share is in ``_calls``.
"""
