"""Faults: implementations that are wrong on purpose, to show that a run would have rejected them."""
