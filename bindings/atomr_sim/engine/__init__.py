"""What runs kernels: the memory that they see, the lanes, warps and blocks, and the interface from text to kernels.

Nothing here knows streams, contexts or handles: those are the driver's.
"""
