"""The trusted implementations: a float64 oracle in NumPy, the definition as loops, attention in PyTorch.

Nothing is imported here, so that `attnlaws.reference.oracle` works where PyTorch is not installed.
"""
