"""The four services in one process, on one loopback port: the embedded way to run."""
