"""The simulated cuRAND: its generators, and where their numbers come from."""
