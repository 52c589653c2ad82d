"""The trusted implementations: a float64 oracle in NumPy, the definition as loops, attention in PyTorch, and the models that
are built of it (GPT, Llama, BERT, T5) with their positions, objectives, samplers and initial weights.

To read, in this order: heads (one head, then many), attention (masks, windows), masks, feed_forward, gpt, objectives, sampling,
generation, cache; then bert, norms and t5, positions and llama; initialise and import_weights last.

To use, here a GPT that learns a few lines and goes on from their beginnings:

    >>> import torch
    >>> from attnlaws.reference.gpt import GPT, GPTConfig
    >>> from attnlaws.reference.objectives import causal_loss
    >>> x = torch.tensor([list(line.encode()) for line in ("the cat sat on a mat", "a dog lay on the rug")])  # (B, L)
    >>> model = GPT(GPTConfig(vocab_size=256, context_length=64, d_model=48, num_layers=2, num_heads=4))
    >>> optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    >>> for step in range(40):
    ...     optimiser.zero_grad()
    ...     causal_loss(model(x), x).backward()  # the tokens that the model read: the shift is made inside
    ...     optimiser.step()
    >>> written = model.eval().generate(x[:, :4], 16, temperature=0)  # (B, 4 + 16)

Nothing is imported here, so that `attnlaws.reference.oracle` works where PyTorch is not installed.
"""
