"""The tool that makes the native loop of the worker: its source, the translation, and the checks of the result."""
