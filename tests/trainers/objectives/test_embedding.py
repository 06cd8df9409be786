"""The embedding against sentence-transformers' own code."""

from __future__ import annotations

import numpy as np
import torch

from weighbridge.trainers.objectives.embedding import Embedding


def encoder(tiny_bert_dir):
    from transformers import BertModel

    return BertModel.from_pretrained(tiny_bert_dir, add_pooling_layer=False).eval()


def batch(rows, width, seed):
    generator = np.random.default_rng(seed)
    ids = torch.from_numpy(generator.integers(5, 100, (rows, width)))
    mask = (
        torch.arange(width) < torch.from_numpy(generator.integers(2, width + 1, (rows, 1)))
    ).long()
    return ids, mask


def test_the_embedding_is_that_of_sentence_transformers(tiny_bert_dir):
    from sentence_transformers import SentenceTransformer

    texts = ["read the file", "a"]
    theirs = SentenceTransformer(str(tiny_bert_dir), device="cpu")
    fed = theirs.tokenizer(texts, padding=True, return_tensors="pt")
    expected = theirs.encode(texts, normalize_embeddings=True)
    with torch.no_grad():
        found = Embedding(encoder(tiny_bert_dir))(fed["input_ids"], fed["attention_mask"])
    assert np.allclose(found.numpy(), expected, atol=1e-6)


def test_padding_changes_nothing(tiny_bert_dir):
    embed = Embedding(encoder(tiny_bert_dir))
    ids, mask = batch(3, 6, 0)
    more = [torch.nn.functional.pad(part, (0, 5)) for part in (ids, mask)]
    more[0][:, 6:] = 7  # whatever lies under the mask
    with torch.no_grad():
        assert torch.allclose(embed(ids, mask), embed(*more), atol=1e-6)
