"""Small pictures for the page: of an example that is the name of an image file."""

import base64
import io
from pathlib import Path

LARGEST = 96  # pixels


def picture(text: str) -> str | None:
    """As a `data:` address; None where the text names no image that can be read."""
    from snaketrain.extras.media_classification.images import ENDINGS

    if not text.lower().endswith(ENDINGS) or not Path(text).is_file():
        return None
    from PIL import Image

    try:
        with Image.open(text) as image:
            image.thumbnail((LARGEST, LARGEST))
            file = io.BytesIO()
            image.convert("RGB").save(file, "JPEG")
    except Exception:  # whatever is wrong with it, the table has its name
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
