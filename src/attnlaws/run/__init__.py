"""A run: every law on one target, within a budget, with a ledger of what was compared."""
