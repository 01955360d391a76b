"""Fine-tuning data of Janus-Pro-R1: JSON lines {promptid, prompt, data}, where data lists judged
pictures {id, img_path, reason, prob, state} of the prompt. Source: spec/janus.md 7.
"""

from pathlib import Path
from typing import Any

from atelier.data.prompts import Prompt
from atelier.data.readers.objects import checked
from atelier.data.readers.problems import Problems, json_lines

KEYS = ("promptid", "prompt", "data")
PICTURE_KEYS = ("id", "img_path", "reason", "prob", "state")


def read(path: Path) -> list[Prompt]:
    """One prompt a line.

    Metadata: "promptid", and "judged": a list of {"id", "image" (path), "reason" (may be empty),
    "prob" (P(yes), 0 to 1), "state" (0: No, unsure; 1: No; 3: Yes, unsure; 4: Yes)}. Relative paths
    are of the file's folder.

    Raises:
        DataError: not a text file; or bad lines, all reported with their number and key, pictures
            that cannot be used among them.
    """
    problems = Problems(path)
    prompts: list[Prompt] = []
    for where, value in json_lines(path, problems):
        row = checked(path, problems, where, value, KEYS)
        if row is None:
            continue
        pictures = row.get("data")
        if not isinstance(pictures, list):
            row.wrong(f"key 'data': a list of judged pictures, not {pictures!r}")
            continue
        judged = [
            _judged(path, problems, f"{where}: data[{index}]", picture)
            for index, picture in enumerate(pictures)
        ]
        metadata = {"promptid": row.identity("promptid"), "judged": judged}
        prompts.append(Prompt(len(prompts), 0, row.text("prompt"), metadata))
    problems.raise_if_any()
    return prompts


def _judged(path: Path, problems: Problems, where: str, value: Any) -> dict[str, Any]:
    picture = checked(path, problems, where, value, PICTURE_KEYS)
    if picture is None:
        return {}
    return {
        "id": picture.identity("id"),
        "image": picture.picture("img_path"),
        "reason": picture.text("reason", optional=True),
        "prob": picture.number("prob", 0, 1),
        "state": picture.whole("state", 0, 4),
    }
