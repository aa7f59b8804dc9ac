"""Arrays of a device: their layout, whose they are, and how they are shared with other libraries of this process.

Where their memory lies is in ``_memory``, and how their elements travel is in ``_transfers``; no arithmetic is here.
"""
