"""Targets: third-party attention code, understood and called without knowing any law."""
