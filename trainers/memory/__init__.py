"""Memory of a training run: measured while it goes on, tested for leaks, drawn, with advice."""

from .advice import advise
from .leaks import Trend, leak_trend
from .plot import plot_memory
from .profiler import MemoryProfiler
from .readings import Sample, read_memory
from .report import MemoryReport, report_of

__all__ = [
    "MemoryProfiler",
    "MemoryReport",
    "Sample",
    "Trend",
    "advise",
    "leak_trend",
    "plot_memory",
    "read_memory",
    "report_of",
]
