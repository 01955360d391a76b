"""Recipes: YAML files below recipes/, each overlaying the one it inherits."""

from __future__ import annotations

from pathlib import Path

from atelier.config.keys import nearest
from atelier.config.paths import repository_root
from atelier.config.yaml_files import Layer, read_yaml, shown
from atelier.errors import ConfigError

MOST_LISTED = 8  # recipes in a message


def recipes_directory() -> Path:
    """The repository's recipes."""
    return repository_root() / "recipes"


def recipe_names(directory: Path) -> list[str]:
    """Names of all recipes: path below `directory`, without `.yaml`."""
    return sorted(
        path.relative_to(directory).with_suffix("").as_posix() for path in directory.rglob("*.yaml")
    )


def recipe_summary(path: Path) -> str:
    """The first comment of a recipe, up to its first empty comment or `Source:` line."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.lstrip("#").strip()
        if not line.startswith("#") or not text or text.split(":")[0] in ("Source", "Deviations"):
            break
        words.append(text)
    return " ".join(words)


def recipe_layers(name: str, directory: Path, where: str = "--recipe") -> list[Layer]:
    """The layers of a recipe, the one inherited first.

    `name` is a recipe's name, or the path of a YAML file when it ends in .yaml or .yml; `where`
    says who asks for it. Raises ConfigError for an unknown recipe, an empty one, one that inherits
    itself, and whatever read_yaml refuses.
    """
    layers: list[Layer] = []
    seen: list[Path] = []
    beside = Path.cwd()
    while True:
        path = _find(name, directory, beside, where)
        if path in seen:
            circle = " -> ".join(shown(step) for step in [*seen[seen.index(path) :], path])
            raise ConfigError(f"{where}: recipes inherit in a circle: {circle}")
        seen.append(path)
        layer = _read_recipe(path)
        layers.insert(0, layer)
        if "inherits" not in layer.values:
            return layers
        name, beside = layer.values.pop("inherits"), path.parent
        where = str(layer.origins[("inherits",)])
        if not isinstance(name, str):
            raise ConfigError(f"{where}: inherits: expected the name of one recipe, not {name!r}")


def _read_recipe(path: Path) -> Layer:
    layer = read_yaml(path)
    if not layer.values:
        raise ConfigError(f"{shown(path)}: the recipe is empty")
    if "recipe" in layer.values:
        where = layer.origins[("recipe",)]
        raise ConfigError(f"{where}: recipe: a recipe names the one it builds on with `inherits`")
    return layer


def _find(name: str, directory: Path, beside: Path, where: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return (beside / name).resolve()
    names = recipe_names(directory)
    if name in names:
        return (directory / f"{name}.yaml").resolve()
    meant = _meant(name, names)
    raise ConfigError(
        f"{where}: there is no recipe {name!r}"
        + (f"; did you mean {meant}?" if meant else "")
        + ("" if meant else f" ({_listed(names)})")
    )


def _listed(names: list[str]) -> str:
    """The families of recipes, or few recipes one by one."""
    if len(names) <= MOST_LISTED:
        return f"known: {', '.join(names) or 'none'}"
    families = sorted({name.rpartition("/")[0] for name in names} - {""})
    return f"{len(names)} are known, of {', '.join(families)}: `atelier recipes` lists them"


def _meant(name: str, names: list[str]) -> str | None:
    """The recipe that `name` misspells, with or without its family."""
    whole = nearest(name, names)
    if whole is not None:
        return whole
    last = nearest(name, [known.rpartition("/")[2] for known in names])
    return next((known for known in names if known.rpartition("/")[2] == last), None)
