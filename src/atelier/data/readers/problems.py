"""What readers share: opening a text file, and reporting everything wrong with it at once."""

import contextlib
import difflib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from atelier.errors import DataError
from atelier.legible import legible, legible_value

MOST_REPORTED = 10
MOST_DIGITS = 300  # of a whole number: more are beyond all floats


class Problems:
    """Collects what is wrong with a file, so that one run of a reader reports all of it.

    `found`: a line each, without the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: list[str] = []

    def add(self, where: str, what: str) -> None:
        """`where` is the place within the file: "line 3", "line 3: key 'include'"."""
        # A value, or a name of it, may be megabytes; and it may have lines and escapes of its own.
        self.found.append(legible(f"{where}: {what}"))

    def raise_if_any(self) -> None:
        """Raise one DataError that names the file and its first problems, one a line."""
        if not self.found:
            return
        shown = self.found[:MOST_REPORTED]
        if len(self.found) > len(shown):
            shown.append(f"and {len(self.found) - len(shown)} more")
        if len(shown) == 1:
            raise DataError(f"{self._path}: {shown[0]}")
        raise DataError(
            f"{self._path}: {len(self.found)} problems\n" + "\n".join(f"  {one}" for one in shown)
        )


def read_text(path: Path) -> str:
    """The whole of a UTF-8 text file (a byte order mark is dropped).

    Raises:
        DataError: missing, a folder, unreadable, empty, binary or not UTF-8 (line named).
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder; name a file in it") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a name with a NUL character
        raise DataError(f"{str(path)!r}: is no file name: {error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}: line {line}: not UTF-8 text ({error.reason}); convert it, for example with "
            "iconv -t UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(f"{path}: holds NUL bytes, so it is not a text file")
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


class NotJson(ValueError):
    """Why a text cannot be used as JSON; `line` and `column` (from 1) where the parser knows."""

    def __init__(self, reason: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(reason)
        self.line = line
        self.column = column


def parse_json(text: str) -> Any:
    """The value of a JSON document that a prompt table can hold.

    Raises:
        NotJson: a syntax error; and what Python's parser takes or fails on in its own way: NaN and
            infinities, also as 1e999, numbers of hundreds of digits, half characters, nesting
            without end; and a key twice with different values, of which it keeps the last.
    """
    try:
        value = json.loads(
            text,
            parse_float=_finite,
            parse_int=_whole,
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_contradiction,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, error.lineno, error.colno) from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise NotJson(f"{half!r} is half a character (a lone surrogate)") from error
    except RecursionError as error:
        raise NotJson("nested too deeply") from error
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise NotJson(f"{legible_value(digits)} is too large a number")
    return value


def _whole(digits: str) -> int:
    """What any sum, mean or table can hold."""
    if len(digits) > MOST_DIGITS:
        raise NotJson("a number of too many digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is no JSON number")


def _refuse_contradiction(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        # By its text: in Python 1 is true.
        if key in made and json.dumps(made[key]) != json.dumps(value):
            raise NotJson(f"key {legible_value(key)} stands twice in an object, with two values")
        made[key] = value
    return made


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Non-blank lines, stripped, with their numbers from 1. Only newlines end a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def json_lines(path: Path, problems: Problems) -> Iterator[tuple[str, Any]]:
    """("line 3", value) of every non-blank line that is JSON; the others are problems.

    Raises:
        DataError: not a text file, or one JSON list in the place of lines.
    """
    text = read_text(path)
    _refuse_list(path, text)
    for number, line in lines(text):
        where = f"line {number}"
        try:
            value = parse_json(line)
        except NotJson as error:
            at = f" at column {error.column}" if error.column else ""
            problems.add(where, f"not JSON: {error}{at}")
            continue
        yield where, value


def _refuse_list(path: Path, text: str) -> None:
    """Every line of a list would be a problem, and none the right one."""
    if not text.lstrip().startswith("["):
        return
    with contextlib.suppress(NotJson):
        value = parse_json(text)
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            raise DataError(
                f"{path}: a JSON list, and JSON lines are expected: an object a line, with no "
                "brackets or commas around them (jq -c '.[]' FILE makes them)"
            )


def json_file(path: Path) -> Any:
    """The value of a file that is one JSON document.

    Raises:
        DataError: not a text file, or not JSON (line named).
    """
    try:
        return parse_json(read_text(path))
    except NotJson as error:
        line = f"line {error.line}: " if error.line else ""
        raise DataError(f"{path}: {line}not JSON: {error}") from error


def json_list(path: Path, of: str) -> list[Any]:
    """The values of a file that is one non-empty JSON list.

    Args:
        of: what it lists, for messages.

    Raises:
        DataError: not a text file, not JSON (line named), or not a non-empty list.
    """
    values = json_file(path)
    if not isinstance(values, list) or not values:
        raise DataError(f"{path}: a non-empty JSON list of {of} expected")
    return values


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or what is known where nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
