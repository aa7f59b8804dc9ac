"""The memory of a device, as numbers: addresses, chunks and blocks, what a lost generation still uses, and the map.

It calls no driver and knows neither arrays nor devices.
"""
