"""JSON objects of prompt files, checked key by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from atelier.data.ground_truth import picture_problem
from atelier.data.readers.problems import Problems, did_you_mean, json_lines
from atelier.legible import legible_value

LONGEST_SHOWN = 60  # characters of a value in a message


def short(value: Any) -> str:
    """A value as a message shows it: never a whole file in one line."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


class Checked:
    """One JSON object of a file: what is asked of it is checked, and what is wrong noted.

    Made by `checked`. `is_right` says whether nothing was wrong so far.
    """

    def __init__(self, path: Path, problems: Problems, where: str, value: dict[str, Any]) -> None:
        self._path = path
        self._problems = problems
        self._where = where
        self._value = value
        self.is_right = True

    def wrong(self, what: str) -> None:
        """Note a problem of this object."""
        self._problems.add(self._where, what)
        self.is_right = False

    def get(self, key: str) -> Any:
        """The value of a key, unchecked; None where there is none."""
        return self._value.get(key)

    def text(self, key: str, optional: bool = False) -> str:
        """A non-empty text, stripped; "" where there is none."""
        value = self._value.get(key)
        if optional and value in (None, ""):
            return ""
        if not isinstance(value, str) or not value.strip():
            self.wrong(f"key {key!r}: a non-empty text, not {short(value)}")
            return ""
        return value.strip()

    def picture(self, key: str, optional: bool = False) -> str | None:
        """Path of a picture file whose header is sound. Relative ones are of the file's folder;
        what is returned is where the file is from here."""
        name = self.text(key, optional)
        if not name:
            return None
        path = self._path.parent / name
        if problem := picture_problem(path):
            self.wrong(f"key {key!r}: {problem}")
        return str(path)

    def number(self, key: str, low: float, high: float) -> float | None:
        """A number in [low, high]."""
        value = self._value.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.wrong(f"key {key!r}: a number from {low:g} to {high:g}, not {short(value)}")
        return None

    def whole(self, key: str, low: int, high: int) -> int:
        """A whole number in [low, high]; `low` where there is none."""
        value = self._value.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.wrong(f"key {key!r}: a whole number from {low} to {high}, not {short(value)}")
        return low

    def identity(self, key: str) -> int | str:
        """A whole number or a non-empty text."""
        value = self._value.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip():
            return value
        self.wrong(f"key {key!r}: a number or a text, not {short(value)}")
        return ""

    def part(self, place: str, value: Any, keys: Sequence[str]) -> Checked | None:
        """`checked` of a value within this object, at `place`."""
        return checked(self._path, self._problems, f"{self._where}: {place}", value, keys)


def checked_lines(path: Path, keys: Sequence[str]) -> Iterator[Checked]:
    """Every line of a file that is an object of these keys and no other.

    Raises:
        DataError: not a text file; or, behind the last line, all that was wrong with any of them.
    """
    problems = Problems(path)
    for where, value in json_lines(path, problems):
        row = checked(path, problems, where, value, keys)
        if row is not None:
            yield row
    problems.raise_if_any()


def checked(
    path: Path, problems: Problems, where: str, value: Any, keys: Sequence[str]
) -> Checked | None:
    """A value that is an object of these keys and no other; else None, and what it is is noted."""
    if not isinstance(value, dict):
        problems.add(where, f"an object with {', '.join(keys)} expected, found {short(value)}")
        return None
    unknown = sorted(value.keys() - set(keys))
    for key in unknown:
        problems.add(where, f"unknown key {legible_value(key)}{did_you_mean(key, keys)}")
    return None if unknown else Checked(path, problems, where, value)
