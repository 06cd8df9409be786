"""The class wants a tracker too, which a detector that was saved alone has not."""

from mlx_vlm.models.sam3.config import DetectorConfig


class DetectorAlone:
    """A detector is loaded and run without the tracker that follows what it finds."""

    def __init__(self, config):
        parts = {k: getattr(config, k) for k in DetectorConfig.__annotations__ if "_config" in k}
        config.detector_config = DetectorConfig(**parts)
        super().__init__(config)
        del self.tracker_model, self.tracker_neck

    def sanitize(self, weights):
        found = {
            f"detector_model.{k.removeprefix('detector_model.')}": v for k, v in weights.items()
        }
        return super().sanitize(found)
