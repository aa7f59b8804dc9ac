"""Worlds: collectives of several devices by NCCL, which survive the loss of their members.

`World` is what a program holds. Below it are the epochs of a world and the requests that run in them; `engine.py` and
`records.py` are of the worker's side.
"""
