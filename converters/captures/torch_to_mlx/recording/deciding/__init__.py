"""Decisions of a module by values of its inputs, which are recorded as the example makes them."""
