"""Plain data on the user's side: errors, dtypes, events, statistics, and what a kernel takes.

It knows neither devices nor generations. The worker imports nothing of it.
"""
