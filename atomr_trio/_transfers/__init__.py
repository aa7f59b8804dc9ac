"""Copies and fills, and the host memory that they use: staging, pinned arrays, the threads that fill it, and trim.

Every library rests on them, and they are no library themselves.
"""
