"""Graphs: launches, copies and fills that are recorded once and launched together.

Launches outside of graphs are in ``modules``, copies and fills in ``_transfers``.
"""
