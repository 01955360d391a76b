"""FocusDiff's pairs with ground truth: JSON list of {prompt1, prompt2, image1, image2}.

Source: FocusDiff and Janus-Pro-R1. An image may be null or not there, where the original's data set
fails.
"""

from pathlib import Path

from atelier.data.prompts import Prompt
from atelier.data.readers.objects import checked
from atelier.data.readers.paircomp import both
from atelier.data.readers.problems import Problems, json_list

PROMPTS, IMAGES = ("prompt1", "prompt2"), ("image1", "image2")


def read(path: Path) -> list[Prompt]:
    """Two prompts a pair, 2i and 2i + 1.

    Metadata: "pair" (i), "caption" (1 or 2), "partner" (the other prompt) and, where there is one,
    "image" (path of this prompt's ground truth; a relative one is of the file's folder).

    Raises:
        DataError: not JSON (line named), not a list; or bad pairs, all reported with their number
            and key, images that cannot be used among them.
    """
    problems = Problems(path)
    prompts: list[Prompt] = []
    for index, value in enumerate(json_list(path, "pairs")):
        pair = checked(path, problems, f"pair {index}", value, (*PROMPTS, *IMAGES))
        if pair is None:
            continue
        texts = [pair.text(key) for key in PROMPTS]
        images = [pair.picture(key, optional=True) for key in IMAGES]
        if pair.is_right and texts[0] == texts[1]:
            pair.wrong("prompt1 and prompt2 are the same")
        for prompt, image in zip(both(index, texts, {}), images, strict=True):
            if image is not None:
                prompt.metadata["image"] = image
            prompts.append(prompt)
    problems.raise_if_any()
    return prompts
