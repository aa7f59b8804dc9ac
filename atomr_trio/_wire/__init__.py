"""The things that both processes know: records, the ring, the channel, the shared page, and the limits of the machine.

The user's process and its worker both import this package, so it uses the standard library alone, and nothing else of
this one. A module that only one side uses does not belong here.
"""
