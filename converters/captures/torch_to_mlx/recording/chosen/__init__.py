"""Rows that are chosen by values, as in ``x[mask]``: computed among all rows, and chosen where they are joined."""
