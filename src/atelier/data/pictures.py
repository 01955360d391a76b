"""Pictures as a policy's tokens, a judge and a checker all look at them: opaque, and square."""

import numpy as np
from PIL import Image

SIXTEEN_BITS = 65535  # white, where grey has 16 bits
MOST_ELONGATED = 16  # times as long as wide: of more, a square shows next to nothing


def opaque(picture: Image.Image) -> Image.Image:
    """A picture as RGB; what is transparent shows white paper.

    Raises:
        ValueError: its grey levels are fractions or have more than 16 bits, so that nobody knows
            which of them is white; or it cannot be made RGB.
    """
    if picture.mode.startswith(("I", "F")):  # PIL would clip at 255: all white, or all black
        return _eight_bits(picture).convert("RGB")
    if not picture.has_transparency_data:
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    layer = picture.convert("RGBA")
    ground = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(ground, layer).convert("RGB")


def deep_problem(picture: Image.Image) -> str | None:
    """Why the grey levels of a picture cannot be told; None where they can."""
    if picture.mode == "F":
        return "has grey levels that are fractions; save it with 8 or 16 bits a channel"
    if picture.mode == "I":
        levels = np.asarray(picture)
        low, high = int(levels.min()), int(levels.max())
        if low < 0 or high > SIXTEEN_BITS:
            return f"has grey levels from {low} to {high}; save it with 8 or 16 bits a channel"
    return None


def _eight_bits(picture: Image.Image) -> Image.Image:
    if problem := deep_problem(picture):
        raise ValueError(problem)
    levels = np.asarray(picture).astype(np.float64) * (255 / SIXTEEN_BITS)
    return Image.fromarray(levels.round().astype(np.uint8))


def square(picture: Image.Image, side: int) -> Image.Image:
    """The middle of a picture, resized so that its short side is `side`.

    Large ones are halved by averaging before they are resized, so that no pixel is skipped. Of
    very long ones the ends are cut off first: a strip of one pixel's width would grow to gigabytes.
    """
    picture = _without_ends(picture)
    while min(picture.size) >= 2 * side:
        halved = (picture.width // 2, picture.height // 2)
        picture = picture.resize(halved, Image.Resampling.BOX)
    scale = side / min(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    picture = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def _without_ends(picture: Image.Image) -> Image.Image:
    """At most MOST_ELONGATED times as long as wide, with the same middle."""
    longest = MOST_ELONGATED * min(picture.size)
    across, down = (max(0, side - longest + 1) // 2 for side in picture.size)
    if not across and not down:
        return picture
    return picture.crop((across, down, picture.width - across, picture.height - down))
