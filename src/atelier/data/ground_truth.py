"""Pictures that belong to a prompt: what it asks for, and what it asks to change.

Prompts of files name picture files, prompts of scenes are drawn when they are asked for. Readers
check the files' headers when a table is made, so that a missing one is a word then and not after
hours of training.
"""

import io
import os
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from atelier.config.paths import from_root
from atelier.data import scene_graphs
from atelier.data.parquet_pictures import is_inside, picture_bytes
from atelier.data.pictures import MOST_ELONGATED, deep_problem, opaque
from atelier.data.prompts import Prompt
from atelier.data.render import REFERENCE_SIZE, render, render_objects
from atelier.data.scenes import from_dict, objects_from_list
from atelier.errors import DataError
from atelier.legible import legible_value

_TRUTH_SCENES = ("target_scene", "scene", "scene_graph")
MOST_PIXELS = 8192 * 8192  # of one picture; a larger one is a mistake, or an attack
# What PIL raises of files that are no pictures, or damaged ones.
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)


def ground_truth_image(prompt: Prompt, size: int = REFERENCE_SIZE) -> Image.Image | None:
    """A picture of what the prompt asks for, RGB; None where there is none.

    The file metadata["image"] as it is; else the scene metadata["target_scene"] or ["scene"], or
    the graph ["scene_graph"], drawn with `size` pixels a side and everything centred, so that two
    scenes that differ in one fact are two pictures that do.

    Raises:
        DataError: the file is not there any more, or damaged.
    """
    return _picture(prompt, "image", _TRUTH_SCENES, size)


def has_ground_truth(prompt: Prompt) -> bool:
    """Whether `ground_truth_image` gives a picture."""
    return any(prompt.metadata.get(name) is not None for name in ("image", *_TRUTH_SCENES))


def source_image(prompt: Prompt, size: int = REFERENCE_SIZE) -> Image.Image | None:
    """The picture that an instruction changes, RGB: the file metadata["source_image"], else the
    scene ["source_scene"], as `ground_truth_image` draws it; None where nothing is to be changed.

    Raises:
        DataError: the file is not there any more, or damaged.
    """
    return _picture(prompt, "source_image", ("source_scene",), size)


def required_picture(picture: Image.Image | None, prompt: Prompt, kind: str) -> Image.Image:
    """One of the above that has to be there.

    Raises:
        DataError: it is not.
    """
    if picture is None:
        raise DataError(f"prompt {prompt.prompt_id} ({prompt.text[:80]}) has no {kind} image")
    return picture


def is_edit(prompt: Prompt) -> bool:
    """Whether the prompt is an instruction that changes a picture."""
    return not {"source_image", "source_scene"}.isdisjoint(prompt.metadata)


def picture_problem(path: Path) -> str | None:
    """Why a file cannot be such a picture, by its header; None where it can."""
    file = from_root(path)
    if is_inside(file):
        try:
            return content_problem(picture_bytes(file), path)
        except OSError as error:
            return str(error)
    if not os.path.isfile(file):  # False for a name no file can have
        return f"no such file {path}"
    return _header_problem(file, path)


def content_problem(content: bytes, path: Path) -> str | None:
    """The same of what a file would hold."""
    return _header_problem(io.BytesIO(content), path)


def _header_problem(file: Path | io.BytesIO, path: Path) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                width, height = picture.size
                is_deep = picture.mode in ("F", "I")
    except Image.DecompressionBombError:
        return f"{path} has too many pixels (at most {MOST_PIXELS})"
    except UNREADABLE:
        return f"{path} is not an image, or a damaged one"
    if width * height > MOST_PIXELS:
        return f"{path} has too many pixels ({width} x {height}, at most {MOST_PIXELS})"
    if max(width, height) > MOST_ELONGATED * min(width, height):
        most = f"at most {MOST_ELONGATED} times as long as wide"
        return f"{path} is too long ({width} x {height}, {most})"
    return _deep_problem(file, path) if is_deep else None


def _deep_problem(file: Path | io.BytesIO, path: Path) -> str | None:
    """The same of one whose grey levels have more than 16 bits, which is read whole."""
    if isinstance(file, io.BytesIO):
        file.seek(0)
    try:
        with Image.open(file) as picture:
            problem = deep_problem(picture)
    except UNREADABLE as error:
        return f"{path} is damaged: {error}"
    return problem and f"{path} {problem}"


def _picture(
    prompt: Prompt, file_key: str, scene_keys: tuple[str, ...], size: int
) -> Image.Image | None:
    metadata: dict[str, Any] = prompt.metadata
    if (path := metadata.get(file_key)) is not None:
        if not isinstance(path, str):
            raise _odd(prompt, file_key, "the path of a picture", path)
        return _read(Path(path), prompt)
    for key in scene_keys:
        if (scene := metadata.get(key)) is not None:
            if not isinstance(scene, dict):
                raise _odd(prompt, key, "a scene", scene)
            return _drawn(scene, size, is_graph=key == "scene_graph")
    return None


def _odd(prompt: Prompt, key: str, expected: str, value: Any) -> DataError:
    return DataError(
        f"prompt {prompt.prompt_id} ({prompt.text[:60]!r}): {key}: {expected} expected, not "
        f"{legible_value(value)}"
    )


def _drawn(scene: dict[str, Any], size: int, is_graph: bool) -> Image.Image:
    if is_graph:
        return render_objects(scene_graphs.from_dict(scene).objects, size=size)
    if scene.get("word") is None:  # edits may have more things than a prompt could name
        return render_objects(objects_from_list(scene.get("objects", [])), size=size)
    return render(from_dict(scene), size=size)


def _read(path: Path, prompt: Prompt) -> Image.Image:
    file = from_root(path)
    try:
        with Image.open(io.BytesIO(picture_bytes(file)) if is_inside(file) else file) as picture:
            picture.load()
            return opaque(ImageOps.exif_transpose(picture))
    except UNREADABLE as error:
        why = picture_problem(path) or f"{path} is damaged: {error}"
        raise DataError(f"prompt {prompt.prompt_id} ({prompt.text[:60]!r}): {why}") from error
