"""Variables of DeepGen-RL's guide: which count, where they rank, and what they never are."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.keys import known_keys, schema_key
from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.config.variables import BY_NAME, JUDGE, VARIABLES, joined, not_taken, taken
from atelier.errors import ConfigError
from atelier.stages.run_file import check_opening, open_run, read_run
from atelier.tracking.run_directory import RunDirectory

FOUR_NODES = {
    "NNODES": "4",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29700",
    "NGPUS": "8",
}
JUDGED = """
inherits: tiny/base
judges:
  ours: {model: a, placement: remote, urls: [http://localhost:1/v1]}
rewards:
  unified_reward_think: {judge: ours}
"""


@pytest.fixture
def judged(tmp_path: Path) -> str:
    path = tmp_path / "judged.yaml"
    path.write_text(JUDGED)
    return str(path)


def of(recipe: str, variables: dict[str, str], *overrides: str, params: str = "") -> RunConfig:
    file = Path(os.devnull)
    if params:
        file = Path(recipe).with_suffix(".params.yaml")
        file.write_text(params)
    return resolve(recipe, overrides, file, variables=variables)


def test_the_four_node_example_is_a_plan_of_32_ranks() -> None:
    launch = of("tiny/base", FOUR_NODES).launch
    assert (launch.nodes, launch.node_rank, launch.processes, launch.ranks) == (4, 1, 8, 32)
    assert (launch.master_address, launch.master_port) == ("10.0.0.1", 29700)


def test_they_rank_above_the_recipe_and_below_params_and_set(judged: str) -> None:
    variables = {"NNODES": "4", "NGPUS": "8"}
    config = of(judged, variables, "launch.processes=3", params="launch: {nodes: 2}\n")
    assert (config.launch.nodes, config.launch.processes) == (2, 3)
    above = of("sd35m/flow-grpo", {"NGPUS": "4"})
    assert (of("sd35m/flow-grpo", {}).launch.processes, above.launch.processes) == (8, 4)


def test_without_being_asked_for_none_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FOUR_NODES.items():
        monkeypatch.setenv(name, text)
    assert resolve("tiny/base", params_file=Path(os.devnull)).launch.nodes == 1


def test_only_names_that_are_set_are_taken_and_tokens_never() -> None:
    environment = {"NNODES": "2", "MASTER_ADDR": "", "WANDB_API_KEY": "secret", "PATH": "/bin"}
    assert taken(environment) == {"NNODES": "2"}


def test_of_several_names_the_first_that_is_set_counts() -> None:
    assert taken({"INDEX": "3", "NODE_RANK": "2"}) == {"NODE_RANK": "2"}
    assert taken({"INDEX": "3", "NODE_RANK": ""}) == {"INDEX": "3"}
    assert of("tiny/base", {"INDEX": "1", "NNODES": "2"}).launch.node_rank == 1


def test_those_that_are_not_taken_are_told() -> None:
    environment = {
        **{"INDEX": "3", "NODE_RANK": "2", "DEQA_URL": "http://a:1", "DEBUG_CPS_SDE": ""},
        **{"WANDB_API_KEY": "secret", "PATH": "/bin"},
    }
    assert not_taken(environment) == [
        "INDEX: not taken: NODE_RANK is set, too",
        "DEQA_URL: not taken: no reward of that name: a section of `rewards.custom` has `urls`, "
        "`workers`",
        "WANDB_API_KEY: not taken: a token: their package reads it, and it is in no file of ours",
    ]
    assert not not_taken({"NNODES": "2"})


def test_a_judge_is_the_one_that_the_run_asks_in_the_end(judged: str) -> None:
    """Whoever says so: the recipe, params.yaml or --set."""
    other = "judges.other={model: b, placement: remote, urls: ['http://localhost:2/v1']}"
    asked = "rewards.unified_reward_think.judge=other"
    config = of(judged, {"UNIFIEDREWARD_THINK_WORKERS": "9"}, other, asked)
    assert config.judges["other"].concurrency == 9
    assert config.judges["ours"] == of(judged, {}).judges["ours"]
    section = "{model: b, placement: remote, urls: ['http://localhost:2/v1']}"
    params = f"judges: {{other: {section}}}\nrewards: {{unified_reward: {{judge: other}}}}\n"
    config = of(judged, {"UNIFIEDREWARD_WORKERS": "9"}, params=params)
    assert config.judges["other"].concurrency == 9


def test_a_reward_that_is_taken_away_takes_its_variables_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("atelier").propagate = True
    overrides = ("rewards.ocr=null", "rewards.jpeg_compressibility.weight=1")
    config = of("tiny/base", {"OCR_WORKERS": "2"}, *overrides)
    assert config == of("tiny/base", {}, *overrides)
    assert "OCR_WORKERS: does nothing: the run has no rewards.ocr" in caplog.text


@pytest.mark.parametrize("algorithm", ["grpo", "nft"])
def test_a_variable_of_an_algorithm_counts_with_that_one(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of them clip advantages, one before any loss and one within that of NFT."""
    logging.getLogger("atelier").propagate = True
    recipe = {"grpo": "tiny/flow-grpo", "nft": "tiny/nft"}[algorithm]
    variables = {
        **{"ATRAIN_NFT_ADV_CLIP_RANGE": "4", "ATRAIN_NFT_BETA": "0.2"},
        **{"ATRAIN_ADV_CLIP_MAX": "3"},
    }
    found = of(recipe, variables).algorithm
    without = of(recipe, {}).algorithm
    if algorithm == "nft":
        assert (found.advantage_clip, found.nft.strength) == (4, 0.2)
        assert "ATRAIN_ADV_CLIP_MAX: does nothing: algorithm.name is nft" in caplog.text
    else:
        assert (found.advantage_clip, found.nft) == (3, without.nft)
        assert "ATRAIN_NFT_BETA: does nothing: algorithm.name is grpo" in caplog.text


def test_pictures_of_the_auxiliary_loss_and_their_root(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("atelier").propagate = True
    variables = {"DATA_ROOT": "/pictures", "SFTAUX_DATASET_CONFIG": "t2i.py"}
    sft = of("deepgen/mr-grpo", variables).data.sft
    file = sft.files["sftaux"]
    assert (sft.source, file.path, file.data_root) == ("files", "t2i.py", "/pictures")
    of("tiny/base", {"DATA_ROOT": "/pictures"})
    assert "DATA_ROOT: does nothing: the run has no data.sft.files.sftaux" in caplog.text


def test_an_address_is_that_of_the_judge_that_the_reward_asks(judged: str) -> None:
    judge = of(judged, {"UNIFIEDREWARD_THINK_URL": "reward-host:18087/"}).judges["ours"]
    assert (judge.urls, judge.placement) == (["http://reward-host:18087/v1"], "remote")
    workers = of(judged, {"UNIFIEDREWARD_THINK_WORKERS": "256"}).judges["ours"].concurrency
    assert workers == 256


def test_an_address_of_a_reward_is_its_services(caplog: pytest.LogCaptureFixture) -> None:
    ocr = of("tiny/base", {"OCR_URL": "http://a:18082", "OCR_WORKERS": "2"}).rewards.ocr
    assert ocr is not None
    assert (ocr.placement, ocr.urls, ocr.workers) == ("remote", ["http://a:18082"], 2)


def test_words_and_switches_are_those_of_the_schema() -> None:
    variables = {"OCR_SCORER_IMPL": "new", "OCR_CASE_SENSITIVE": "0", "OCR_NGRAM_MAX": "2"}
    ocr = of("tiny/base", variables).rewards.ocr
    assert ocr is not None
    assert (ocr.rule, ocr.spans.case_sensitive, ocr.spans.most_joined) == ("spans", False, 2)
    assert of("tiny/base", {"OCR_IGNORE_PUNCT": "1"}).rewards.ocr != ocr
    data = of("tiny/base", {"DATASET_CONFIG": "a.yaml", "EVAL_DATASET_CONFIG": "b.yaml"}).data
    assert (data.path, data.source) == ("a.yaml", "deepgen")
    assert (data.heldout_path, data.heldout_source) == ("b.yaml", "deepgen_eval")
    models = {"SD3_5_MODEL_NAME_OR_PATH": "sd3", "QWEN2_5_VL_MODEL_NAME_OR_PATH": "qwen"}
    bases = of("tiny/base", models).policy.bases
    assert (bases.pipeline, bases.vlm) == ("sd3", "qwen")


def test_the_guides_addresses_are_those_of_its_recipe(tmp_path: Path) -> None:
    variables = {
        "OCR_URL": "http://rewards:18082",
        "UNIFIEDREWARD_THINK_URL": "http://rewards:18087",
    }
    config = of("deepgen/services", variables)
    assert config.rewards.ocr is not None
    assert config.rewards.ocr.urls == ["http://rewards:18082"]
    assert config.judges["unified_reward"].urls == ["http://rewards:18087/v1"]
    own = tmp_path / "own.yaml"
    own.write_text("inherits: deepgen/services\nevaluation: {unigenbench: {judge: unigenbench}}\n")
    judge = of(str(own), {"UNIGENBENCH_WORKERS": "256"}).judges["unigenbench"]
    assert judge.concurrency == 256


def test_what_the_recipe_does_not_have_is_told_and_not_added(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("atelier").propagate = True
    variables = {"PICKSCORE_URL": "http://a:1", "UNIFIEDREWARD_THINK_URL": "http://b:1"}
    config = of("tiny/base", variables)
    assert config == of("tiny/base", {})
    assert "PICKSCORE_URL: does nothing: the run has no rewards.pick_score" in caplog.text
    assert "UNIFIEDREWARD_THINK_URL: does nothing" in caplog.text


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("online", (True, "online")), ("cloud", (True, "online")), ("disabled", (False, "offline"))],
)
def test_modes_of_mirrors(judged: str, mode: str, expected: tuple[bool, str]) -> None:
    params = "tracking: {swanlab: {project: x}}\n"
    text = Path(judged)
    text.write_text(f"{JUDGED}tracking: {{swanlab: {{enabled: true}}}}\n")
    mirror = of(judged, {"SWANLAB_MODE": mode}, params=params).tracking.swanlab
    assert (mirror.enabled, mirror.mode) == expected


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NNODES": "four"}, r"\$NNODES: launch\.nodes: \"four\" must be a whole number"),
        ({"NNODES": "0"}, r"\$NNODES: launch\.nodes: 0 "),
        ({"NNODES": "1_000"}, r"launch\.nodes: \"1_000\" must be a whole number"),
        ({"NNODES": "٣"}, r"launch\.nodes: \"٣\" must be a whole number"),
        ({"ATRAIN_ADV_CLIP_MAX": "1_0.5"}, r"algorithm\.advantage_clip: \"1_0\.5\" must be a num"),
        ({"RUN_NAME": "\x1b[31mX"}, r"wandb\.run_name: .* must be one line of printable"),
        ({"RUN_NAME": "a\x00"}, r"wandb\.run_name: .* must be one line of printable"),
        ({"WANDB_PROJECT": "a\nb"}, r"wandb\.project: .* must be one line of printable"),
        ({"NODE_RANK": "4", "NNODES": "4"}, r"\$NODE_RANK: launch\.node_rank: 4 is none of"),
        ({"WANDB_MODE": "maybe"}, r"\$WANDB_MODE: tracking\.wandb\.mode"),
        ({"OCR_CASE_SENSITIVE": "yes"}, r"\$OCR_CASE_SENSITIVE: rewards\.ocr\.spans\.case_sens"),
        ({"OCR_URL": "http://u:p@host"}, r"rewards\.ocr\.urls: a URL carries no user"),
        ({"HOME": "/"}, r"variable HOME: stands for no key"),
        ({"WANDB_API_KEY": "x"}, r"variable WANDB_API_KEY: stands for no key"),
    ],
)
def test_a_text_that_cannot_be_is_refused_by_its_name(
    variables: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        of("tiny/base", variables)


def test_every_key_exists() -> None:
    for one in VARIABLES:
        for key in one.keys:
            assert schema_key(key) in known_keys() or (
                JUDGE in key and schema_key(key.rpartition(".")[0]) in known_keys()
            ), key
        assert one.keys or one.why, one.name
    assert len(BY_NAME) == sum(1 + len(one.instead) for one in VARIABLES), "a name stands twice"


def test_digests_follow_what_was_taken(tmp_path: Path) -> None:
    runs = {}
    for name, variables in (("without", {}), ("with", {"ATRAIN_ADV_CLIP_MAX": "3"})):
        run = RunDirectory(tmp_path / name)
        runs[name] = write_stage_configs(of("tiny/base", variables), run)
    assert runs["with"]["train"] != runs["without"]["train"]
    assert runs["with"]["prepare"] == runs["without"]["prepare"]


def test_a_run_keeps_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path))
    variables = {"ATRAIN_ADV_CLIP_MAX": "3"}
    run = open_run("tiny/base", [], None, None, "one", variables)
    assert read_run(run)["variables"] == variables
    monkeypatch.setenv("ATRAIN_ADV_CLIP_MAX", "4")
    again = open_run(None, ["train.steps=7"], None, "one", "one")
    config = resolve_of(again)
    assert (config.algorithm.advantage_clip, config.train.steps) == (3, 7)


def test_variables_of_a_resumed_run_are_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path))
    open_run("tiny/base", [], None, None, "one", {"ATRAIN_ADV_CLIP_MAX": "3", "OCR_WORKERS": "2"})
    variables = {"OCR_WORKERS": "4"}
    assert check_opening(None, [], None, "one", variables).algorithm.advantage_clip == 3
    run = open_run(None, [], None, "one", "one", variables)
    config = resolve_of(run)
    assert config.rewards.ocr is not None
    assert (config.algorithm.advantage_clip, config.rewards.ocr.workers) == (3, 4)
    assert read_run(run)["variables"] == {"ATRAIN_ADV_CLIP_MAX": "3", "OCR_WORKERS": "4"}
    open_run(None, ["train.steps=7"], None, "one", "one", {})
    assert read_run(run)["variables"] == {"ATRAIN_ADV_CLIP_MAX": "3", "OCR_WORKERS": "4"}


def test_one_variable_by_another_name_is_replaced() -> None:
    before = {"INDEX": "1", "NNODES": "2"}
    assert joined(before, {"NODE_RANK": "0"}) == {"NNODES": "2", "NODE_RANK": "0"}
    assert joined(before, {}) == before


def resolve_of(run: RunDirectory) -> RunConfig:
    from atelier.config.resolve import load_stage_config

    return load_stage_config(run.config("train"))


def atelier(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "atelier", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_command_says_which_it_does_not_use() -> None:
    command = ("show", "--recipe", "tiny/base", "--params", os.devnull)
    without = atelier(*command, NNODES="4")
    assert "nodes: 1" in without.stdout
    assert without.stderr == "NNODES: set, and not used without --variables\n"
    asked = atelier(*command, "--variables", NNODES="4")
    assert "nodes: 4" in asked.stdout
    assert not asked.stderr


def test_a_stage_ignores_them_and_says_so(tmp_path: Path) -> None:
    command = ("stage", "resolve", "--run", str(tmp_path), "--params", os.devnull)
    done = atelier(*command, "--recipe", "tiny/base", NNODES="4", WANDB_PROJECT="x")
    assert done.returncode == 0, done.stderr
    assert "NNODES, WANDB_PROJECT: set, and read by no stage" in done.stderr
    assert resolve_of(RunDirectory(tmp_path)) == of("tiny/base", {})


def test_they_are_listed_and_printed_for_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    printed = CliRunner().invoke(application, ["variables", "--json"])
    assert json.loads(printed.stdout)["NNODES"] == "2"
    assert "WANDB_API_KEY: not taken: a token" in printed.stderr
    listed = CliRunner().invoke(application, ["variables"]).output
    assert "* NNODES" in listed
    assert "secret" not in printed.output + listed


def test_only_node_0_opens_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"atelier node --address 10\.0\.0\.1 --port 29700 --r"):
        open_run(
            "tiny/h100",
            ["train.prompts_per_step=64", "rollout.micro_batch_size=24"],
            None,
            None,
            "one",
            FOUR_NODES,
        )
    assert list(tmp_path.iterdir()) == []
