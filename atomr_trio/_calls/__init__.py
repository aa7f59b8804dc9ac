"""Calls: verbs written once and called in two forms, calls that are repeated, and the short way of a launch."""
