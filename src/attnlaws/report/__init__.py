"""Reports: the terminal, case files that replay, scripts that need only the target and its framework."""
