"""Passes: rewrites of a recorded graph, before it runs, that change its speed and not its results.

One file a pass; ``table.PASSES`` names them in order, and each can be left out by its name. They act on
the graph that ``torch.export`` recorded, so they are written and tested in PyTorch's own operations.
"""
