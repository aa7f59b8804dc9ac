"""One worker's life, seen from the user's process: its process, its tickets, its output, and the standbys for the next.

It knows neither arrays nor libraries, but for what `generation` still borrows of them.
"""
