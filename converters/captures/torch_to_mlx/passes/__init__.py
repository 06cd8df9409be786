"""Passes: rewrites of a recorded graph, before it runs, that change its speed and not its results.

One file a pass; ``table.PASSES`` names them in order, and each can be left out by its name. They act on
the graph that ``torch.export`` recorded, so they are written and tested in PyTorch's own operations.

None makes int32 of int64: at fixed sizes BERT, Llama and T5 compute with no int64 once constants are folded; at open sizes
T5, which computes most with them, was no faster compiled on a CPU with int32 alone.
"""
