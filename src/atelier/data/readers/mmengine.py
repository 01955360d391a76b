"""Python configurations of MMEngine, read as literals and never run.

DeepGen-RL names the data of its auxiliary loss in one. Literals, names, sums
of texts and lists, f-strings, `dict(...)`, `os.path.join` and `os.getenv` are read; what only
running the file would tell is told with its line where it matters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from atelier.data.readers.problems import Problems, read_text
from atelier.errors import DataError

LOADER = "train_dataloader"
_LONGEST = 10_000  # characters of a path, and data sets of a list


class Unknown:
    """What only running the file would tell."""

    def __init__(self, node: ast.expr | ast.stmt | ast.alias) -> None:
        self.line = node.lineno
        self._node = node

    def __str__(self) -> str:
        return _first_line(self._node)


class Entry(dict[str, Any]):
    """A mapping of the file, and the line it begins in."""

    def __init__(self, line: int, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.line = line

    def __repr__(self) -> str:  # of values that share others, the whole text may have no end
        return f"<mapping of line {self.line}>"


def read_entries(path: Path) -> list[Entry]:
    """The mappings with a `data_path` in the data set of `train_dataloader`, in their order. Values
    are literals, lists, Entry or Unknown; $NAME in a text is a variable of the environment.

    Raises:
        DataError: not a Python file; or it would have to be run to know the data sets: every place
            with its line.
    """
    problems = Problems(path)
    values: dict[str, Any] = {}
    try:
        statements = ast.parse(read_text(path)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: not Python: {error or 'nested too deeply'}") from error
    for statement in statements:
        try:
            _follow(statement, values, problems)
        except RecursionError:
            problems.add(f"line {statement.lineno}", "nested too deeply")
    problems.raise_if_any()
    if LOADER not in values:
        raise DataError(f"{path}: has no {LOADER}, which names the data sets")
    found = list(_entries(values[LOADER], problems))
    problems.raise_if_any()
    if not found:
        raise DataError(f"{path}: {LOADER}: names no data set, which has a data_path")
    return found


def _follow(statement: ast.stmt, values: dict[str, Any], problems: Problems) -> None:
    """Note what a statement sets; any but an assignment could change what others set."""
    match statement:
        case ast.Assign(targets=targets, value=value) if names := _names(targets):
            values.update(dict.fromkeys(names, _value(value, values)))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            values[name] = _value(value, values)
        case ast.Expr(value=ast.Constant()) | ast.Pass():  # a comment in quotes
            pass
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="read_base")))]):
            for one in statement.body:  # names of other files
                _follow(one, values, problems)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            for alias in aliases:
                _import(alias, values)
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            values[name] = Unknown(statement)
        case _:
            text = _first_line(statement)
            problems.add(f"line {statement.lineno}", f"`{text}` would have to be run")
    for node in ast.walk(statement):
        if isinstance(node, ast.NamedExpr):
            values[node.target.id] = Unknown(node)


def _import(alias: ast.alias, values: dict[str, Any]) -> None:
    """Any name may be one of `*`."""
    name = (alias.asname or alias.name).split(".")[0]
    values.update(dict.fromkeys(list(values) if name == "*" else [name], Unknown(alias)))


def _first_line(node: ast.AST) -> str:
    try:
        return ast.unparse(node).splitlines()[0]
    except RecursionError:
        return "an expression that is nested too deeply"


def _names(targets: Sequence[ast.expr]) -> list[str]:
    """What is assigned to; none where that is more than names."""
    names = [one.id for one in targets if isinstance(one, ast.Name)]
    return names if len(names) == len(targets) else []


def _entries(loader: Any, problems: Problems) -> Iterator[Entry]:
    """Those of a loader, a data set, a data set of data sets, or a list of them, however deep."""
    seen: set[int] = set()
    left = [loader]
    while left:
        value = left.pop()
        if isinstance(value, Unknown):
            problems.add(f"line {value.line}", f"`{value}` is known only when the file is run")
        elif isinstance(value, Entry | list) and id(value) in seen:
            where = f"line {value.line}" if isinstance(value, Entry) else LOADER
            problems.add(where, "stands twice among the data sets; give it a sample_weight")
        elif isinstance(value, Entry) and "data_path" in value:
            seen.add(id(value))
            yield value
        elif isinstance(value, Entry | list):
            seen.add(id(value))
            left.extend(reversed(_parts(value)))  # in the order of the file


def _parts(value: Entry | list[Any]) -> list[Any]:
    """Where data sets may be in one that is none itself."""
    if isinstance(value, list):
        return value
    return [value[key] for key in ("dataset", "datasets") if key in value]


def _value(node: ast.expr, values: dict[str, Any]) -> Any:
    """A literal, or a name, sum or call of literals that these files are made of."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(one, values) for one in parts]
        case ast.Dict(keys=keys, values=parts):
            names = [None if key is None else _value(key, values) for key in keys]
            return _entry(node, names, parts, values)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if (
            "dict" not in values  # a name of the file's own
        ):
            names = [one.arg for one in keywords]
            return _entry(node, names, [one.value for one in keywords], values)
        case ast.Call(
            func=ast.Attribute(attr="getenv")
            | ast.Attribute(attr="get", value=ast.Attribute(attr="environ")),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return f"${name}"
        case ast.Subscript(
            value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))
        ):
            return f"${name}"
        case ast.Call(
            func=ast.Attribute(attr="join", value=ast.Attribute(attr="path")), args=parts
        ):
            return _joined(node, [_value(one, values) for one in parts], "/")
        case ast.JoinedStr(values=parts):
            return _joined(node, [_value(one, values) for one in parts])
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            return _value(value, values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _added(node, _value(left, values), _value(right, values))
    return Unknown(node)


def _entry(
    node: ast.expr, names: Sequence[Any], parts: Sequence[ast.expr], values: dict[str, Any]
) -> Any:
    """A mapping; where its keys are not known, neither is it."""
    found: dict[str, Any] = {}
    for name, part in zip(names, parts, strict=True):
        value = _value(part, values)
        if isinstance(name, str):
            found[name] = value
        elif name is None and isinstance(value, Entry):  # **value
            found |= value
        else:
            return Unknown(node)
    return Entry(node.lineno, found)


def _joined(node: ast.expr, parts: Sequence[Any], between: str = "") -> Any:
    texts = [one for one in parts if isinstance(one, str)]
    is_known = len(texts) == len(parts) and sum(map(len, texts)) <= _LONGEST
    return between.join(texts) if is_known else Unknown(node)


def _added(node: ast.expr, left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list) and len(left + right) <= _LONGEST:
        return left + right
    return _joined(node, [left, right])
