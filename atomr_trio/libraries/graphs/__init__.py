"""Graphs: launches, copies and fills that are recorded once and launched together."""
