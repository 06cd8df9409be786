"""Tiles of a picture do not lie side by side, and each takes the place of one token."""

from mlx_vlm.models.llava_onevision.llava_onevision import Model as OneVision


class Tiles:
    """A picture is a small whole, then its tiles side by side, a new line behind each row."""

    max_num_patches = float("inf")
    patches_per_side = OneVision.patches_per_side
    pack_image_features = OneVision.pack_image_features
    get_image_features = OneVision.get_image_features
    get_input_embeddings = OneVision.get_input_embeddings
    _select_features = OneVision._select_features
    _scatter_features = OneVision._scatter_features
