"""What a judge said of a picture, as verdicts: a key's yes or no.

`published` reads a reply as the benchmark's own scorer does, for numbers that compare with its
leaderboard: a key without a line is a no, and so is every key of a reply that has no line at all.
`read_verdicts` tells what was not said from what was denied, and reads more ways to write a line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

# A reply may be megabytes of one character. So no run can be divided between two parts of a
# pattern, which would be tried in every way: the time is proportional to a line's length.
_MARKS = r"[\s*_`\"'\u201c\u201d]*"
_VERDICT = re.compile(
    rf"{_MARKS}[:\uff1a\ufe55](?:{_MARKS}[\[(])?{_MARKS}(?P<verdict>yes|no)\b(?P<rest>.*)",
    re.IGNORECASE,
)
# "yes/no", "yes or no", "[yes|no]": a form that was copied is no verdict.
_EITHER = re.compile(r"(?:(?=\W*[/|])\W*+|\W*+or\b\W*+)(?:yes|no)\b", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*+\u2022\u2013]|\(?\d+[.)])\s*")
_EMPHASIS = re.compile(r"\*\*|__|`")
_OPENING = "*_\"'\u201c\u2018 "


def published(text: str, keys: Iterable[str]) -> dict[str, bool]:
    """Every key's verdict by the published rule; the last line of a key counts.

    A line is: a bullet or "1.", the key, in back-ticks or not, a colon, yes or no. "2)" and "[YES]"
    make no line, and a single letter of those two words is a no, "y" as well.
    """
    known = list(dict.fromkeys(keys))
    found = dict.fromkeys(known, False)
    if not known:
        return found
    plain = text.replace("**", "").replace("[yes]", "yes").replace("[no]", "no")
    names = "|".join(re.escape(key) for key in known)
    line = re.compile(
        rf"^[ \t]*(?:(?:[-*\u2022]|\d+\.)[ \t]*)?`?({names})`?"
        r"[ \t]*[:\uff1a][ \t]*(yes|no|[yesno])",
        re.IGNORECASE | re.MULTILINE,
    )
    by_case = {key.lower(): key for key in known}
    for name, verdict in line.findall(plain):
        key = name if name in found else by_case.get(name.lower())
        if key is not None:
            found[key] = verdict.lower() == "yes"
    return found


def read_verdicts(text: str, keys: Sequence[str]) -> dict[str, bool]:
    """The verdict of every key that has one; empty for a reply that has no line at all.

    A line begins with a key, behind a bullet or a number or not, in any case, emphasised or not;
    then come a colon and yes or no, in brackets or not. A key has no verdict without a line, or
    where its lines contradict each other. Of keys that differ in case alone a line means the one
    that it has as it is, and none where it has none of them so.
    """
    spellings: dict[str, set[str]] = {}
    for key in keys:
        spellings.setdefault(_plain(key), set()).add(_bare(key))
    by_length = sorted(spellings, key=len, reverse=True)
    said: dict[str, set[bool]] = {}
    for line in text.splitlines():
        if (one := _read_line(line, by_length)) is not None:
            for spelling in _meant(line, spellings[one[0]]):
                said.setdefault(spelling, set()).add(one[1])
    clear = {name: verdicts.pop() for name, verdicts in said.items() if len(verdicts) == 1}
    return {key: clear[_bare(key)] for key in keys if _bare(key) in clear}


def _meant(line: str, spellings: Collection[str]) -> Collection[str]:
    """Those of a key's spellings that a line is about: one, or none."""
    if len(spellings) == 1:
        return spellings
    starts = tuple(_starts(_bare(line)))
    return [one for one in spellings if any(start.startswith(one) for start in starts)]


def _read_line(line: str, by_length: Sequence[str]) -> tuple[str, bool] | None:
    """The key that a line begins with and its verdict; the longest key where several would do."""
    for start in _starts(_plain(line)):
        for key in by_length:
            match = _VERDICT.match(start, len(key)) if start.startswith(key) else None
            if match and not _EITHER.match(match["rest"]):
                return key, match["verdict"] == "yes"
    return None


def _starts(line: str) -> dict[str, None]:
    """The line as it stands, since a name may begin like a bullet; without bullet; without the
    marks that emphasis opens with."""
    bullet = _BULLET.match(line)
    bare = line[bullet.end() :] if bullet else line
    return dict.fromkeys((line, bare, bare.lstrip(_OPENING)))


def _plain(text: str) -> str:
    """`_bare` in lower case."""
    return _bare(text).lower()


def _bare(text: str) -> str:
    """Without the marks of bold and code, every white space one blank."""
    return " ".join(_EMPHASIS.sub("", text).split())
