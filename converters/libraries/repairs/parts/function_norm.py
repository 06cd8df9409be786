"""A norm that is a function of the library's module has an epsilon that is fixed."""

from functools import partial
from importlib.util import find_spec, module_from_spec

import mlx.core as mx

spec = find_spec(library.__name__)
library = module_from_spec(spec)  # read again, so that nobody else's norm changes
spec.loader.exec_module(library)


class FunctionNorm:
    """The norm without weights has `rms_norm_eps`."""

    def __init__(self, args):
        super().__init__(args)
        library.rms_norm = partial(mx.fast.rms_norm, weight=None, eps=args.rms_norm_eps)
