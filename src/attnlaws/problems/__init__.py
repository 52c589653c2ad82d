"""Problems: the structure of one call, drawn; its values, derived from a seed."""
