"""Lanes and events: CUDA streams and their marks.

The order between commands, and the tickets of a lane, are in ``_generation``; the three lanes of every device too.
"""
