"""What `python -m atomr_trio` does: doctor, demo, run and cache.

The commands are ordinary users of the public face: nothing in here reaches behind `atomr_trio.open_device`.
"""
