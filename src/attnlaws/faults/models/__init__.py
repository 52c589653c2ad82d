"""Faults of models: small decoders, encoders and encoder-decoders with one step replaced."""
