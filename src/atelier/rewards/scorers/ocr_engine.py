"""PP-OCR through rapidocr: an image in, the lines read in it out.

Call flags of rapidocr stick to the engine object, and an engine is not made for two threads at
once, so an engine is of one mode, and who reads has it alone. Models come from the wheel: they are
named by path, because rapidocr would download one that is only named by version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from atelier.errors import ConfigError
from atelier.rewards.scorers.text import Box

# Width to which the recogniser pads an image scaled to a height of 48. rapidocr's 320 is for lines
# of print; a whole square image is 48 wide, and with 64 it is read as well in a third of the time
# (benchmarks/ocr_speed.py). Wider images get the width that they need in either case.
WHOLE_IMAGE_WIDTH = 64
_DETECTOR = "PP-OCRv6_det_small"
_RECOGNIZER = "PP-OCRv6_rec_small"

_free: dict[bool, list[Any]] = {False: [], True: []}


@dataclass(frozen=True)
class Line:
    """One recognised line: its text, the confidence in [0, 1], its corners if it was detected."""

    text: str
    confidence: float
    box: Box | None = None


def version(detect: bool) -> str:
    """What reads: package, models and mode. Scores of different versions do not compare."""
    models = f"{_DETECTOR}+{_RECOGNIZER}" if detect else f"{_RECOGNIZER}/{WHOLE_IMAGE_WIDTH}"
    return f"rapidocr-{metadata.version('rapidocr')}/{models}"


def model_files(detect: bool) -> dict[str, Path]:
    """rapidocr's parameter -> the model file that it is given, of those a mode uses.

    Raises:
        ConfigError: the installed rapidocr does not bring one of them.
    """
    import rapidocr

    names = {"Rec.model_path": _RECOGNIZER} | ({"Det.model_path": _DETECTOR} if detect else {})
    folder = Path(rapidocr.__file__).parent / "models"
    files = {key: folder / f"{name}.onnx" for key, name in names.items()}
    for file in files.values():
        if not file.is_file():
            raise ConfigError(
                f"rewards.ocr: rapidocr {metadata.version('rapidocr')} does not bring {file.name}; "
                "install the version in the constraints file"
            )
    return files


def read_lines(image: Image, detect: bool) -> list[Line]:
    """Read an image of any size.

    Args:
        image: any PIL mode; converted to RGB.
        detect: find text boxes first (slow); else the whole image is read as one line.

    Returns:
        Lines with text, in the engine's order; empty if nothing was read.
    """
    blue_green_red = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])
    with _borrowed_engine(detect) as engine:
        result = engine(blue_green_red)
    if result.txts is None:
        return []
    boxes = result.boxes.tolist() if detect else [None] * len(result.txts)
    return [
        Line(text, float(confidence), box)
        for text, confidence, box in zip(result.txts, result.scores, boxes, strict=True)
        if text and confidence > 0
    ]


@contextmanager
def _borrowed_engine(detect: bool) -> Iterator[Any]:
    """An engine that nobody else uses meanwhile, of a mode; built where none is free (about 0.3 s).
    Threads come and go: what they have built is there for the next."""
    free = _free[detect]
    try:
        engine = free.pop()  # at once for all threads
    except IndexError:
        engine = _build_engine(detect)
    yield engine
    free.append(engine)  # not after an error: who knows in what state it is


def _build_engine(detect: bool) -> Any:
    import rapidocr

    parameters: dict[str, Any] = {
        # Both, whatever the mode: rapidocr would look for the one that is not named.
        **{key: str(path) for key, path in model_files(detect=True).items()},
        "Global.log_level": "critical",  # an image without text is no warning here
        "Global.text_score": 0.0,  # the published rule counts every line; see min_confidence
        "Global.use_det": detect,
        "Global.use_cls": False,
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,  # threads belong to the trainer
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    if not detect:
        parameters["Rec.rec_img_shape"] = [3, 48, WHOLE_IMAGE_WIDTH]
    return rapidocr.RapidOCR(params=parameters)
