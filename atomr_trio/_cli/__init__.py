"""The commands of `python -m atomr_trio`: doctor, demo, run, check and cache.

The commands use the public interface alone, from `atomr_trio.open_device` on.
"""
