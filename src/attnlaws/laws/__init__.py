"""What a law is, how one is tried on a problem, and where the laws are found."""
