"""Judging a kernel: the error a correct one may make, and the verdict."""
