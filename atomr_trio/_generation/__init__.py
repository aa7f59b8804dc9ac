"""One worker's life, seen from the user's process: its process, its tickets, its output, and the standbys for the next.

`generation` owns the parts, each of which has one duty and a file. None knows arrays or libraries.
"""
