"""What the engines rest on: lanes, the giving back of objects, library calls by record, memory and shared arrays.

Nothing here knows a library by its name.
"""
