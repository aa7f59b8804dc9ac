"""The supervision of devices and actors: the state machine, the mailboxes, and timers in real time.

It knows neither generations nor memory.
"""
