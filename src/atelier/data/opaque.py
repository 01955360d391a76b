"""Pictures without transparency: what a policy's tokens, a judge and a checker all look at."""

from PIL import Image


def opaque(picture: Image.Image) -> Image.Image:
    """A picture as RGB; what is transparent shows white paper."""
    if not picture.has_transparency_data:
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    layer = picture.convert("RGBA")
    ground = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(ground, layer).convert("RGB")
