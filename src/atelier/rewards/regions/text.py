"""Text in a picture as region counters want it: PP-OCR with detection, through rapidocr.

Deviation: published counts read with PaddleOCR and its classifier of turned text.
"""

from __future__ import annotations

from PIL.Image import Image

from atelier.mmmg.regions import ReadText
from atelier.rewards.scorers import ocr_engine


def read_text(image: Image, symbols: bool = True) -> list[ReadText]:
    """The pieces of text of a picture.

    Args:
        symbols: whether text without a letter or a digit counts: a drawn cross is read as "+".
    """
    return [
        ReadText(line.box, line.confidence)
        for line in ocr_engine.read_lines(image, detect=True)
        if line.box is not None and (symbols or any(one.isalnum() for one in line.text))
    ]
