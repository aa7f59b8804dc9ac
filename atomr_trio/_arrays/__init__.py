"""Arrays of a device: their layout, whose they are, and how they are shared with other libraries of this process."""
