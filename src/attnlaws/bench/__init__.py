"""Benchmarks: how long a target takes, how near to the machine's limit, and whether it got slower."""
