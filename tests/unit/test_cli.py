"""The command line: quick, light, helpful, and frozen in what it offers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier import telemetry
from atelier.cli.application import application
from atelier.config.paths import repository_root
from atelier.config.recipes import recipe_names, recipes_directory
from atelier.config.reference import reference
from atelier.environments import DECLARED, Environment, environment
from atelier.errors import ConfigError

HEAVY = ("torch", "diffusers", "transformers", "pandas", "numpy", "prefect", "mlflow", "PIL")
RESOLVABLE = ["--recipe", "tiny/flow-grpo-fast", "--params", os.devnull]


def run(*arguments: str) -> str:
    """The output of a verb that works."""
    result = CliRunner().invoke(application, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    "arguments", [["--help"], ["recipes"], ["validate", *RESOLVABLE], ["show", *RESOLVABLE]]
)
def test_light_verbs_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys, atelier.cli\n"
        f"sys.argv = ['atelier', *{arguments!r}]\n"
        "try:\n"
        "    atelier.cli.main()\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_verbs_and_their_options_are_these() -> None:
    """An option is a promise: one that comes or goes is a decision, not a side effect."""
    configured = {"--recipe", "--set"}
    offered = {
        name: {option for parameter in verb.params for option in parameter.opts}
        for name, verb in application.commands.items()
    }
    assert offered == {
        "compare": {"names", "--out", "--metric"},
        "demo": configured,
        "docs": set(),
        "doctor": set(),
        "down": {"--force"},
        "environments": set(),
        "export": set(),
        "judge": set(),
        "paircomp": set(),
        "mmmg": set(),
        "complex-edit": set(),
        "node": {"--address", "--port", "--rank", "--wait"},
        "plan": configured
        | {"--variables", "--params", "--gpu-gib", "--per-device", "--accumulation"},
        "prune": {"--keep", "--older-than", "--checkpoints", "--leftovers", "--apply"},
        "recipes": set(),
        "rewards": set(),
        "run": configured | {"--variables", "--name", "--resume"},
        "show": configured | {"--variables", "--params"},
        "stage": configured | {"--params", "name", "--run"},
        "up": {"--gpu-slots"},
        "unigenbench": set(),
        "validate": configured | {"--variables", "--params"},
        "variables": {"--json"},
        "verify": {"name", "--base", "--device"},
    }


def test_recipes_are_listed_with_what_they_are() -> None:
    lines = run("recipes").splitlines()
    assert any(line.startswith("tiny/flow-grpo-fast") and "make demo" in line for line in lines)
    place = next(place for place, line in enumerate(lines) if line.startswith("To inherit from"))
    shared = [line.split()[0] for line in lines[place + 1 :]]
    own = [line.split()[0] for line in lines[: place - 1]]
    assert {"tiny/base", "deepgen/services"} <= {*shared}
    assert not [name for name in own if name.endswith(("/base", "/services"))]
    assert {*own, *shared} == {*recipe_names(recipes_directory())}


def test_show_prints_what_was_overridden() -> None:
    assert "group_size: 24" in run("show", *RESOLVABLE, "--set", "rollout.group_size=24")


def test_plan_prints_every_number() -> None:
    settings = ["policy.path=organisation/model", "train.steps=10", "train.prompts_per_step=12"]
    table = run("plan", *RESOLVABLE, *(part for text in settings for part in ("--set", text)))
    for name in ("prompts a step", "images a step", "updates", "memory a process"):
        assert name in table
    assert "1,920" in table


@pytest.mark.parametrize("arguments", [["verify", ""], ["export", "original", "", "out"]])
def test_nothing_is_no_place_of_an_export(arguments: list[str]) -> None:
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 2
    assert "PATH is empty" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["valdate"], "validate"), (["validate", "--recpe", "x"], "--recipe")]
)
def test_a_misspelled_verb_or_option_is_answered_with_a_suggestion(
    arguments: list[str], meant: str
) -> None:
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 2
    assert meant in result.output


def test_a_stage_takes_no_configuration_but_its_file() -> None:
    with pytest.raises(ConfigError, match="atelier stage resolve"):
        run("stage", "train", "--set", "train.steps=3")


def test_an_error_is_a_message_and_an_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atelier", "validate", "--recipe", "no/such"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --recipe: there is no recipe 'no/such'")
    assert "Traceback" not in done.stderr


def test_the_configuration_reference_is_current() -> None:
    page = repository_root() / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == reference(), (
        "run `atelier docs configuration --write`"
    )


def test_doctor_looks_at_everything() -> None:
    output = CliRunner().invoke(application, ["doctor"]).output
    for name in ("python", "gpu", "port 4200", "port 5000", "write runs/", "disk", "telemetry"):
        assert f"  {name} " in output
    assert "environment vllm" in output


def test_telemetry_is_off_unless_the_user_says_otherwise() -> None:
    environ = {"HF_HUB_DISABLE_TELEMETRY": "0"}
    telemetry.off_by_default(environ)
    assert environ.pop("HF_HUB_DISABLE_TELEMETRY") == "0"
    assert environ.items() <= telemetry.SWITCHES.items()


def test_the_command_line_turns_telemetry_off_for_its_children() -> None:
    script = "import sys, os, atelier.cli as c; sys.argv = ['atelier', 'recipes']\n"
    script += (
        "try: c.main()\nexcept SystemExit: pass\nsys.exit(os.environ['DO_NOT_TRACK'] != 'true')"
    )
    environ = {k: v for k, v in os.environ.items() if k not in telemetry.SWITCHES}
    done = subprocess.run([sys.executable, "-c", script], env=environ, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


def test_dependencies_read_the_switches_they_are_given() -> None:
    """Against the installed packages: a renamed switch is noticed here."""
    script = (
        "from atelier import telemetry\n"
        "telemetry.off_by_default()\n"
        "from huggingface_hub import constants\n"
        "from dvc import analytics\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "from prefect.settings import get_current_settings\n"
        "assert constants.HF_HUB_DISABLE_TELEMETRY\n"
        "assert not analytics.is_enabled()\n"
        "assert is_telemetry_disabled()\n"
        "assert not get_current_settings().server.analytics_enabled\n"
    )
    environ = {k: v for k, v in os.environ.items() if k not in {*telemetry.SWITCHES, "CI"}}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_declared_environments_have_their_files() -> None:
    for name, variants in DECLARED.items():
        found = environment(name, repository_root())
        for variant in variants:
            assert all(file.is_file() for file in found.files(variant))
    assert DECLARED["vllm"] == {
        "gpu": ("requirements.txt",),
        "cpu": ("requirements-cpu.txt", "requirements-cpu-torch.txt"),
    }
    assert DECLARED["image_reward"]["cpu"] == ("requirements.txt",)
    with pytest.raises(ConfigError, match=r"known: .*vllm"):
        environment("vlm", repository_root())


def test_resolving_says_what_the_plan_warns_of(tmp_path: Path) -> None:
    command = ["stage", "resolve", "--run", str(tmp_path / "run"), "--recipe", "tiny/base"]
    result = CliRunner().invoke(application, [*command, "--set", "train.checkpoint_every=9999"])
    assert result.exit_code == 0, result.output
    assert "warning: train.checkpoint_every: no checkpoint before" in result.stderr
    assert "warning" not in result.stdout


@pytest.mark.slow
def test_an_environment_is_stale_once_its_declaration_changes(tmp_path: Path) -> None:
    declaration = tmp_path / "environments" / "vllm"
    declaration.mkdir(parents=True)
    (declaration / "requirements.txt").write_text("# nothing to install\n")
    found = Environment("vllm", tmp_path)
    assert found.state() == "missing"

    assert found.create("gpu").exists()
    assert (found.state(), found.variant) == ("current", "gpu")

    (declaration / "requirements.txt").write_text("# something else\n")
    assert found.state() == "stale"


def test_what_is_not_there_is_not_verified() -> None:
    """Said at once, and not after a minute of imports."""
    result = CliRunner().invoke(application, ["verify", "runs/nowhere/export"])
    assert result.exit_code != 0
    assert "runs/nowhere/export: no run and no such directory" in str(result.exception)
    assert "Reloading" not in result.output
