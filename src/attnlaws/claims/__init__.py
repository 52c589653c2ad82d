"""The claims ledger: what three texts on attention say, measured, and what is right."""
