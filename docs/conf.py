"""Sphinx: Markdown through MyST, nothing generated from the code yet."""

project = "atomr_trio"
author = "The atomr_trio authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist", "smartquotes"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "atomr_trio"
