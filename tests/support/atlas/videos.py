"""Videos: what a click points at in the first of two frames, followed into the second by both libraries."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.parity.probes.pictures import drawn

Arrays = dict[str, npt.NDArray[Any]]
KINDS = frozenset({"sam3_video"})  # types that follow things


def clicked(config: Any) -> Arrays:
    """Return two frames as large as CONFIG says, and a click on the first of them, in pixels."""
    size = config.image_size
    return {
        "video": drawn(2, 3, size, size),
        "points": np.array([[[[0.3 * size, 0.4 * size]]]], np.float32),
        "labels": np.array([[[1]]]),
    }


def in_torch(model: Any, video: Any, points: Any, labels: Any) -> SimpleNamespace:
    """Return the masks that the tracker of the torch MODEL finds in both frames of VIDEO."""
    from transformers.models.sam3_tracker_video.modeling_sam3_tracker_video import (
        Sam3TrackerVideoInferenceSession,
    )

    size = video.shape[-1]
    session = Sam3TrackerVideoInferenceSession(
        video, size, size, dtype=video.dtype, max_vision_features_cache_size=len(video)
    )
    for n, frame in enumerate(video):
        found = model.get_vision_features_for_tracker(
            model.detector_model.get_vision_features(frame[None])
        )
        kept = dict(zip(("vision_feats", "vision_pos_embeds"), found, strict=True))
        session.cache.cache_vision_features(n, kept)
    clicks = {"point_coords": points, "point_labels": labels}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, clicks)
    session.obj_with_new_inputs = [1]
    masks = [
        model.tracker_model(session, frame_idx=n).pred_masks.flatten() for n in range(len(video))
    ]
    return SimpleNamespace(pred_masks=masks[0].new_tensor(np.concatenate(masks)))


def in_mlx(model: Any, given: Mapping[str, Any]) -> SimpleNamespace:
    """Return the masks that mlx-vlm's MODEL finds in both frames of what it is GIVEN.

    Steps are those of its ``Sam3VideoPredictor``, whose masks are black and white.
    """
    import mlx.core as mx

    frames = [
        model.detector_model.vision_encoder.backbone(it[None].transpose(0, 2, 3, 1))
        for it in given["video"]
    ]
    points, labels = given["points"][:, 0], given["labels"][:, 0]
    first, second = (model.tracker_neck(it) for it in frames)
    found = model.tracker_model.track_step(first[2], prompt_points=(points, labels))
    next_ = model.tracker_model.track_step(
        second[2], memory_bank=[found["memory"]], high_res_features=[*second[:2]]
    )
    masks = [it["pred_masks"][:, 0].flatten() for it in (found, next_)]
    return SimpleNamespace(pred_masks=mx.concatenate(masks))
