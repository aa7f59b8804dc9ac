"""One folder or file per library: the verbs a user calls, with every check that can be made before anything is sent."""
