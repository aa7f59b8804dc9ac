"""An open device as its user sees it: opening, `Device`, `Batch`, and the supervision of the generations.

Every layer of the package is below this one. Nothing here knows how a command is written or carried; what belongs to
one library lies in ``libraries``.
"""
