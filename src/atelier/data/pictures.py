"""Pictures as a policy's tokens, a judge and a checker all look at them: opaque, and square."""

from PIL import Image


def opaque(picture: Image.Image) -> Image.Image:
    """A picture as RGB; what is transparent shows white paper."""
    if not picture.has_transparency_data:
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    layer = picture.convert("RGBA")
    ground = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(ground, layer).convert("RGB")


def square(picture: Image.Image, side: int) -> Image.Image:
    """The middle of a picture, resized so that its short side is `side` (spec janus 1.1).

    Large ones are halved by averaging before they are resized, so that no pixel is skipped.
    """
    while min(picture.size) >= 2 * side:
        halved = (picture.width // 2, picture.height // 2)
        picture = picture.resize(halved, Image.Resampling.BOX)
    scale = side / min(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    picture = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))
