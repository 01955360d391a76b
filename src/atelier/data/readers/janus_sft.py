"""Fine-tuning data of Janus-Pro-R1: JSON lines {promptid, prompt, data}, where data lists judged
pictures {id, img_path, reason, prob, state} of the prompt. Source: FocusDiff and Janus-Pro-R1.
"""

from pathlib import Path
from typing import Any

from atelier.data.prompts import Prompt
from atelier.data.readers.objects import Checked, checked_lines, short

KEYS = ("promptid", "prompt", "data")
PICTURE_KEYS = ("id", "img_path", "reason", "prob", "state")


def read(path: Path) -> list[Prompt]:
    """One prompt a line.

    Metadata: "promptid", and "judged": a list of {"id", "image" (path), "reason" (may be empty),
    "prob" (P(yes), 0 to 1), "state" (0: No, prob low; 1: No, prob high; 3: Yes, prob low; 4: Yes,
    prob high)}. Relative paths are of the file's folder.

    Raises:
        DataError: not a text file; or bad lines, all reported with their number and key, pictures
            that cannot be used among them.
    """
    prompts: list[Prompt] = []
    for row in checked_lines(path, KEYS):
        pictures = row.get("data")
        if not isinstance(pictures, list):
            row.wrong(f"key 'data': a list of judged pictures, not {short(pictures)}")
            continue
        judged = [_judged(row, f"data[{index}]", one) for index, one in enumerate(pictures)]
        metadata = {"promptid": row.identity("promptid"), "judged": judged}
        prompts.append(Prompt(len(prompts), 0, row.text("prompt"), metadata))
    return prompts


def _judged(row: Checked, place: str, value: Any) -> dict[str, Any]:
    picture = row.part(place, value, PICTURE_KEYS)
    if picture is None:
        return {}
    return {
        "id": picture.identity("id"),
        "image": picture.picture("img_path"),
        "reason": picture.text("reason", optional=True),
        "prob": picture.number("prob", 0, 1),
        "state": picture.whole("state", 0, 4),
    }
