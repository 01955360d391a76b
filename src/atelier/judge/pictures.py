"""Images as a judge gets them: PNG in data URIs, made smaller where the configuration says so."""

from __future__ import annotations

import base64
import hashlib
import io
import threading

from PIL import Image

from atelier.data.pictures import opaque

_LOADING = threading.Lock()  # a file is read by the first use, and questions share images


def prepared(image: Image.Image, longest_side: int | None) -> Image.Image:
    """An RGB image whose longer side is at most `longest_side` pixels; transparency is on white.

    Raises:
        OSError, ValueError: its file cannot be read, or it has no pixels.
    """
    if min(image.size) < 1:
        raise ValueError(f"an image of {image.width} x {image.height} pixels")
    with _LOADING:
        image.load()
    rgb = opaque(image)
    longest = max(rgb.size)
    if longest_side is None or longest <= longest_side:
        return rgb
    width, height = (max(1, round(side * longest_side / longest)) for side in rgb.size)
    return rgb.resize((width, height), Image.Resampling.LANCZOS)


def fingerprint(image: Image.Image) -> str:
    """sha256 of an RGB image's size and pixels: equal images are equal, whoever encodes them."""
    size = f"{image.width}x{image.height}:".encode()
    return hashlib.sha256(size + image.tobytes()).hexdigest()


def data_uri(image: Image.Image) -> str:
    """An image as PNG; quickly, because most of what is asked is sent once."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
