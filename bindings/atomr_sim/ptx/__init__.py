"""PTX text and its translation to Python: the grammar, the instructions and their arithmetic, the flow of control.

Nothing here runs a kernel, and nothing knows memory, lanes or devices.
"""
