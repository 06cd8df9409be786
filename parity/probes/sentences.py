"""Real text for probes: what the documentation of a programming language is made of.

The sentences stand here rather than in the interpreter's own docstrings, so that every Python
version asks the same questions. They cover prose, numbers, code, punctuation and other scripts.
"""

from __future__ import annotations

from typing import Final

SENTENCES: Final = (
    "Remove any common leading whitespace from every line in `text`.",
    "This library supports command-line parsing, and produces highly informative usage messages.",
    (
        "The median is a robust measure of central location and is less affected by the presence of"
        " outliers in your data."
    ),
    "Return True if any element of the iterable is true. If the iterable is empty, return False.",
    (
        "Beautiful is better than ugly. Explicit is better than implicit. Simple is better than"
        " complex. Complex is better than complicated."
    ),
    (
        "Heaps are arrays for which a[k] <= a[2*k+1] and a[k] <= a[2*k+2] for all k, counting elements"
        " from 0."
    ),
    "Find the index of the first occurrence of value, raising ValueError if it is not present.",
    (
        "A process may block when it tries to acquire a lock that another thread already holds;"
        " releasing it wakes exactly one waiter."
    ),
    "In the face of ambiguity, refuse the temptation to guess.",
    (
        "The floating-point number nearest to 0.1 is 0.1000000000000000055511151231257827, which is"
        " why 0.1 + 0.2 != 0.3!"
    ),
    (
        "Guido's café déjà-vu: «naïve» strings — 北京, Москва, λ → ∞, emoji 🚂 — must survive"
        " encoding, too."
    ),
    "Special cases aren't special enough to break the rules. Although practicality beats purity.",
    (
        "When several inputs are given, they are read in order; a file name of '-' stands for standard"
        " input, and it is never closed."
    ),
    "Now is better than never. Although never is often better than *right* now.",
)
