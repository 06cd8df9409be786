"""One file per runtime; :func:`load` makes a model runnable in one of them."""

from .base import Runner as Runner
from .base import Trace as Trace
from .loading import RUNNERS as RUNNERS
from .loading import load as load
from .loading import native_runtime as native_runtime
