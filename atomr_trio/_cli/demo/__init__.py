"""The demo and all that only it needs: the simulation's kernel, and the picture that it writes.

What several commands need, as the choice of a device and the progress of long work, lies beside this folder.
"""

from .program import add_arguments as add_arguments, main as main
