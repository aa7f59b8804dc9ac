"""Lanes and events: CUDA streams and their marks."""
