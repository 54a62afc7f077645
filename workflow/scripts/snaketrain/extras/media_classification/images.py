"""Images for a model with an image head."""

from typing import Any

import numpy as np

from snaketrain.extras.media_classification.files import ClassifiedFiles

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


class Images(ClassifiedFiles):
    """`augment` gets and returns an image of PIL, such as an object of torchvision.transforms does."""

    kind, endings, auto = "an image", ENDINGS, "AutoImageProcessor"

    def read(self, path: str) -> Any:
        from PIL import Image, ImageOps

        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")  # as the camera was held

    def look_at(self, path: str) -> None:
        from PIL import Image

        with Image.open(path) as image:
            image.verify()

    def processed(self, content: Any) -> dict[str, np.ndarray]:
        return dict(self.processor(content, return_tensors="np"))
