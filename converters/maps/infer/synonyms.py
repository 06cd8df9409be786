"""Words that say the same in different libraries; data for ``tokens``.

Collected from the parameter names of transformers, mlx-lm, mlx-examples, timm, Keras, Flax, fairseq,
Megatron, x-transformers and nanoGPT. A phrase is made of tokens: names are taken apart at dots,
underscores, capitals and digits.
"""

from typing import Final

CONCEPTS: Final[dict[str, str]] = {
    "query": "q, q proj, query proj, query, to q, wq, w q, queries, q lin, q linear",
    "key": "k, k proj, key proj, key, to k, wk, w k, keys, k lin, k linear",
    "value": "v, v proj, value proj, value, to v, wv, w v, values, v lin, v linear",
    "query key value": "qkv, to qkv, wqkv, query key value, c attn, in proj qkv, w pack, qkv mat",
    "key value": "kv, to kv, key value, wkv",
    "result": "o, o proj, out proj, to out, wo, w o, out lin, attention output, self attn out, "
    "attn output, attn out, output proj, attn proj, attn c proj, attention dense",
    "attention": "attn, attention, self attn, self attention, mha, msa, multi head attention, sa, "
    "selfattention, multihead attention, token mixer",
    "mlp": "mlp, ffn, ff, feed forward, feedforward, block sparse moe, feed forward network",
    "gate": "gate proj, w 1, w gate, gate linear, wg, linear gate, wi 0",
    "up": "up proj, w 3, w up, wi 1, linear v, wu, linear up",
    "down": "down proj, w 2, wd, w down, linear down",
    "gate up": "gate up proj, gate up, w 13, w 12, wi fused",
    "wide": "fc 1, c fc, lin 1, linear 1, intermediate, wi, dense h to 4 h, mlp up, intermediate dense, dense 1, "
    "ffn up, up, expand, fc in",
    "narrow": "fc 2, lin 2, linear 2, dense 4 h to h, mlp c proj, dense 2, ffn down, down, fc out, contract",
    "experts": "experts, expert, switch mlp, switch, moe experts, local experts, switch glu",
    "shared": "shared expert, shared experts, shared mlp, shared, common",
    "router": "router, gating, moe gate, gate network, block sparse moe gate",
    "norm": "norm, ln, layer norm, layernorm, rms norm, rmsnorm, batch norm, bn, group norm, gn, "
    "batchnorm, normalization, layer normalization",
    "norm before attention": "input layernorm, input norm, ln 1, norm 1, attn norm, attention norm, pre attn norm, "
    "layer norm 1, attn ln, layernorm before, self attn layer norm, pre attention norm, rms 1, pre norm",
    "norm before mlp": "post attention layernorm, post norm, ln 2, norm 2, ffn norm, mlp norm, "
    "pre ffn norm, layer norm 2, mlp ln, layernorm after, pre mlp norm, rms 2, post attention norm, pre ff norm",
    "norm at the end": "ln f, final norm, norm f, final layer norm, final layernorm, ln post, post layernorm, "
    "norm out, ln final, out norm, final ln",
    "norm of query": "q norm, query norm, norm q, q layernorm, q ln, q layer norm",
    "norm of key": "k norm, key norm, norm k, k layernorm, k ln, k layer norm",
    "words": "word embeddings, embed tokens, tok embeddings, wte, token embedding, tokens embed, "
    "word embedding, token embeddings, shared embedding, embed in, embeddings, embedding, embed, tok emb",
    "positions": "position embeddings, wpe, pos embed, pos embedding, position embedding, embed positions, "
    "positional embedding, pos emb, position ids, positions, pos, position",
    "types": "token type embeddings, segment embeddings, token types",
    "head": "lm head, head, classifier, logits, unembed, output layer, embed out, predictions, score, "
    "cls head",
    "layers": "layers, layer, h, blocks, block, stack, resblocks, encoder layers, decoder layers, "
    "blk, transformer blocks, transformer layers, resnets",
    "stages": "stages, stage, groups, levels, features",
    "convolution": "conv, convolution, conv 1 d, conv 2 d, conv 1d, conv 2d, dwconv, short conv, causal conv",
    "patches": "patch embed, patch embedding, patches, patchify, patch embeddings, conv proj",
    "stem": "stem, conv stem, conv in, conv first, embedder",
    "shortcut": "shortcut, downsample, skip, residual, identity, skip connection",
    "class": "class token, cls token, class embedding, cls, class embed",
    "vision": "vision, visual, vision model, image encoder, vision tower, img, image, image tower",
    "text": "text, text model, text encoder, txt, language, language model",
    "projection": "projection, proj",
    "scale of logits": "logit scale, temperature, log scale, logit temperature",
    "state": "mixer, ssm, mamba, s 6, state space, selective ssm",
    "log of decay": "a log, log a",
    "feedthrough": "d, skip d, d skip",
    "step": "dt proj, dt, delta proj, delta, time step, step proj",
    "input": "in proj, in linear, input proj, proj in",
    "output": "out, output, out linear, proj out",
    "step and state": "x proj, proj x, bcdt",
    "weight": "weight, w, kernel, matrix, scale, gamma, g",
    "bias": "bias, b, beta, offset, shift",
    "mean": "running mean, moving mean, mean",
    "variance": "running var, moving variance, moving var, var, variance, running variance",
}
# What stands at each place of a fused tensor of that concept.
PIECES: Final[dict[str, tuple[str, ...]]] = {
    "query key value": ("query", "key", "value"),
    "key value": ("key", "value"),
    "gate up": ("gate", "up"),
}
# Words of buffers that a model computes itself; one of these may be missing on the other side.
RECOMPUTED: Final = (
    "inv freq",
    "position ids",
    "num batches tracked",
    "cos cached",
    "sin cached",
    "causal mask",
    "attn mask",
    "masked bias",
    "freqs cis",
)
