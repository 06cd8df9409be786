"""A window of tokens that become one forgets the window before it, where that was read by another call."""

import mlx.core as mx
from mlx_vlm.models.deepseek_v4 import language


class OverlappingWindows:
    """A window of tokens that become one is joined with the window before it, whatever call read that."""

    def __init__(self, config):
        super().__init__(config)
        for _, module in self.named_modules():
            if getattr(module, "overlap", False):
                module.__class__ = Compressor


class Compressor(language.Compressor):
    def __call__(self, x, pool_cache, offset):
        if pool_cache is None:
            return super().__call__(x, pool_cache, offset)
        *ready, base = pool_cache.accumulate_windows(self.wkv(x), self.wgate(x), offset)
        made = mx.zeros((x.shape[0], 0, self.head_dim), dtype=x.dtype)
        if ready[0].size:
            before = getattr(pool_cache, "before", [])  # the window read last, if there is one
            parts = [mx.unflatten(it, 1, (-1, self.compress_ratio)) for it in ready]
            pool_cache.before = [[it[:, -1:] for it in parts]]
            parts = [mx.concatenate(it, axis=1) for it in zip(*before, parts)]
            made = language._overlap_compress_kv(*parts, self.ape, self.head_dim)
            made = self.norm(made[:, len(before) :])
            made = self.rope(made[:, None], offset=base).squeeze(1)
        return pool_cache.update_and_fetch(made)
