"""The trusted implementations: a float64 oracle in NumPy, the definition as loops, attention in PyTorch, and the models that
are built of it (GPT, Llama, BERT, T5) with their positions, objectives, samplers and initial weights.

Nothing is imported here, so that `attnlaws.reference.oracle` works where PyTorch is not installed.
"""
