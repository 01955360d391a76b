"""Resolution: which source wins, and what a resolved value is."""

import os
import re
from pathlib import Path

import pytest

from atelier.config.recipes import recipe_names, recipe_summary, recipes_directory
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """Three recipes: a base, a child that inherits it, a grandchild in another family."""
    folder = tmp_path / "recipes"
    write(folder / "base.yaml", "rollout: {group_size: 8, num_inference_steps: 6}\n")
    write(folder / "child.yaml", "inherits: base\nrollout: {group_size: 12}\n")
    write(folder / "other" / "grandchild.yaml", "inherits: child\ntrain: {learning_rate: 1e-4}\n")
    return folder


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return write(tmp_path / "params.yaml", "rollout: {}\n")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_schema_defaults_stand_without_a_recipe(params: Path, recipes: Path) -> None:
    assert resolve(params_file=params, recipes_dir=recipes) == RunConfig()


def test_a_recipe_overlays_what_it_inherits_key_by_key(params: Path, recipes: Path) -> None:
    config = resolve("other/grandchild", params_file=params, recipes_dir=recipes)

    assert config.recipe == "other/grandchild"
    assert config.rollout.group_size == 12  # the child's
    assert config.rollout.num_inference_steps == 6  # the base's
    assert config.train.learning_rate == 1e-4  # its own, and a number in spite of YAML 1.1


def test_params_win_over_the_recipe_and_set_over_params(tmp_path: Path, recipes: Path) -> None:
    params = write(tmp_path / "p.yaml", "recipe: child\nrollout: {group_size: 24}\ntrain: {}\n")

    config = resolve(params_file=params, recipes_dir=recipes)
    assert (config.recipe, config.rollout.group_size) == ("child", 24)

    config = resolve(None, ["rollout.group_size=32"], params, recipes)
    assert config.rollout.group_size == 32


def test_the_recipe_of_the_command_line_replaces_that_of_params(
    tmp_path: Path, recipes: Path
) -> None:
    params = write(tmp_path / "p.yaml", "recipe: child\n")
    assert resolve("base", (), params, recipes).rollout.group_size == 8


def test_a_recipe_can_be_a_file_and_inherit_from_one_beside_it(
    tmp_path: Path, params: Path, recipes: Path
) -> None:
    write(tmp_path / "mine" / "below.yaml", "inherits: base\ntrain: {steps: 7}\n")
    top = write(tmp_path / "mine" / "top.yaml", "inherits: below.yaml\ntrain: {seed: 3}\n")

    config = resolve(str(top), (), params, recipes)

    assert (config.train.steps, config.train.seed, config.rollout.group_size) == (7, 3, 8)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("rollout.window.range=[0, 4]", (0, 4)),
        ("rollout.window.range=null", None),
        ("rollout.window={size: 3}", 3),
        ("rewards.ocr.weight=0.5", 0.5),
        ("rewards.ocr=null", None),
        ("data.path='no'", "no"),
        ("data.path=no", "no"),  # a word, not YAML 1.1's false
        ("train.learning_rate=2e-5", 2e-5),
        ("tracking.run_name=''", ""),
        ("train.seed=010", 10),
    ],
)
def test_override_values_are_yaml(override: str, value: object, params: Path) -> None:
    key = override.partition("=")[0]
    found: object = resolve(None, [override], params)
    for part in (*key.split("."), "size") if key == "rollout.window" else key.split("."):
        found = getattr(found, part)
    assert found == value


def test_the_last_of_two_overrides_wins(params: Path) -> None:
    config = resolve(None, ["rewards.ocr=null", "rewards.ocr.weight=2"], params)
    assert config.rewards.ocr is not None
    assert config.rewards.ocr.weight == 2


def test_the_repository_without_params_file_has_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        resolve(params_file=tmp_path / "missing.yaml")


@pytest.mark.parametrize("name", recipe_names(recipes_directory()))
def test_every_recipe_of_the_repository_resolves_and_says_what_it_is(
    name: str, params: Path
) -> None:
    assert resolve(name, params_file=params).recipe == name
    assert recipe_summary(recipes_directory() / f"{name}.yaml")


@pytest.mark.parametrize(
    "name", [one for one in recipe_names(recipes_directory()) if not one.endswith("/base")]
)
def test_every_recipe_says_where_it_is_from_and_how_it_differs(name: str) -> None:
    text = (recipes_directory() / f"{name}.yaml").read_text(encoding="utf-8")
    for heading in ("# Source: ", "# Deviations"):
        assert heading in text
    if not name.startswith("tiny/"):
        assert "# Hardware: " in text
        assert re.search(r"not\s(# *)?measured|benchmarks/", text)


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    params = write(
        tmp_path / "p.yaml",
        "recipe: tiny/base\nrollout:\n  gruop_size: 3\ntrain:\n  steps: many\n  seed: -1\n",
    )
    with pytest.raises(ConfigError) as caught:
        resolve(None, ["algorithm.beta=-1", "nonsense"], params)

    message = str(caught.value)
    expected = [
        "p.yaml:3: rollout.gruop_size: unknown key; did you mean rollout.group_size?",
        'p.yaml:5: train.steps: "many" must be a whole number',
        "p.yaml:6: train.seed: -1 must be greater than or equal to 0",
        "--set algorithm.beta: -1",
        "--set nonsense: expected dotted.key=value",
    ]
    assert all(part in message for part in expected), message
    places = [message.index(part) for part in expected[:3]]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ("9", "data.edit_levels: 9 must be levels from 1 to 8, such as 8, 1-8 or 1,3,5"),
        ("5-2", 'data.edit_levels: "5-2" is not valid: 5-2 counts down; write 2-5'),
    ],
)
def test_what_a_check_of_ours_says_is_said_once(levels: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, [f"data.edit_levels={levels}"], Path(os.devnull))
    assert str(caught.value).endswith(message)
