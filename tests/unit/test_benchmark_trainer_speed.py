"""The benchmark of whole training steps: what it computes of a step, and a real run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.config.plan import plan
from benchmarks import trainer_speed
from benchmarks.arithmetic import Arithmetic
from benchmarks.speed_cases import CASES, SIZES, Load, Setting, load_of
from benchmarks.speed_figures import figures, gain_words, gains
from benchmarks.speed_page import page, page_name

LOAD = Load(images=48, actions=10, rollout_rows=480, replay_rows=1440, gradient_rows=480)
WORK = Arithmetic(forward=2, both=5)
ABOUT = {
    "model": "SD3.5 medium shape",
    "device": "NVIDIA H200",
    "date": "2026-01-02",
    "command": "python -m benchmarks.trainer_speed --out DIR",
    "cases": [*CASES],
    "versions": {"torch": "2.11.0", "diffusers": "0.42.1", "transformers": "5.24.0"},
    "text": "tiny",
    "pictures": "noise",
    "rewards": "jpeg_compressibility",
    "images": 48,
    "steps": 3,
    "side": 8192,
    "peak": 700.0,
}


ROWS = [
    {"time/step": 12.5, "memory/peak_gib": 40.0},
    {"time/step": 9.0, "memory/peak_gib": 41.0},
    {"time/step": 7.0, "memory/peak_gib": 40.5},
]
TIMES = [
    {"rollout": 3.2, "decode": 0.2, "score": 1.0, "update": 8.0},
    {"rollout": 2.3, "decode": 0.3, "score": 0.5, "update": 6.0},
    {"rollout": 2.5, "decode": 0.1, "score": 0.4, "update": 4.0},
]
GATE = [{"event": "started"}, {"event": "replay_gate", "mean": 1e-6, "p99": 3e-6, "max": 5e-6}]


def test_rates_are_of_median_seconds() -> None:
    found = figures(ROWS, TIMES, GATE, LOAD, WORK, peak=1000.0)
    assert found["seconds"] == pytest.approx(
        {"rollout": 2.4, "decode": 0.2, "score": 0.5, "update": 6.0, "epoch": 9.0, "rest": 0.2}
    )
    assert found["images_per_second"] == pytest.approx(20.0)  # 48 / 2.4
    assert found["sample_steps_per_second"] == pytest.approx(80.0)  # 480 / 6
    # 480 x 2; 1440 x 2 + 480 x 3; both: operations, at 1000 a second.
    assert found["mfu"] == pytest.approx(
        {"rollout": 960 / 2400, "update": 4320 / 6000, "epoch": 5280 / 9000}
    )
    assert found["peak_gib"] == 41.0


def test_the_gap_is_of_the_gate_unless_steps_tell_it() -> None:
    assert figures(ROWS, TIMES, GATE, LOAD, WORK, 1.0)["gap"] == {"mean": 1e-6, "max": 5e-6}
    told = [
        {**one, "ratio/rollout_gap_mean": mean, "ratio/rollout_gap_max": most}
        for one, mean, most in zip(ROWS, (1.0, 2.0, 6.0), (7.0, 9.0, 8.0), strict=True)
    ]
    assert figures(told, TIMES, GATE, LOAD, WORK, 1.0)["gap"] == {"mean": 3.0, "max": 9.0}


def test_a_gain_of_three_percent_is_none() -> None:
    stock = {"seconds": {"rollout": 4.0, "update": 1.02, "epoch": 9.0}}
    fast = {"seconds": {"rollout": 2.0, "update": 1.0, "epoch": 10.0}}
    assert gains(stock, fast) == pytest.approx({"rollout": 2.0, "update": 1.02, "epoch": 0.9})
    words = [gain_words(one) for one in gains(stock, fast).values()]
    assert words == ["2.00", "1.02 (no gain)", "0.90 (no gain)"]


def medium(*overrides: str) -> Setting:
    """On the published model, whose sizes are known without its files."""
    published = Path("stabilityai/stable-diffusion-3.5-medium")
    return Setting(SIZES["medium"], published, "cuda", 16, 4, overrides)


@pytest.mark.parametrize(
    ("case", "batch", "expected"),
    [  # of 48 images; with the pass that finds old log-probs, which the recipe has
        ("no_cfg", 24, Load(48, 10, 480, 960, 480)),
        ("cfg", 12, Load(48, 10, 960, 1920, 960)),
        ("cfg_kl", 12, Load(48, 10, 960, 2880, 960)),
        ("window", 24, Load(48, 3, 480, 288, 144)),
    ],
)
def test_what_a_step_of_a_case_holds(case: str, batch: int, expected: Load) -> None:
    config = medium().config(case, "fast")
    assert load_of(config, plan(config)) == expected
    assert config.rollout.micro_batch_size == batch
    assert (config.policy.transformer, config.policy.base_dtype) == ("fast", "float16")
    assert (config.policy.lora.rank, config.policy.lora.alpha) == (16, 32)
    folded = medium().config(case, "folded").policy
    assert (folded.transformer, folded.lora.folded) == ("fast", True)
    asked = medium("rollout.old_log_prob=rollout").config(case, "fast")
    kept = load_of(asked, plan(asked))
    assert kept.replay_rows == expected.replay_rows - kept.gradient_rows


def test_a_step_that_samples_ahead_is_not_the_last_one() -> None:
    ahead = ("train.one_step_off=true", "rollout.old_log_prob=rollout")
    steps = [medium(*more).config("no_cfg", "fast").train.steps for more in ((), ahead)]
    assert steps == [4, 5]


def test_a_page_says_where_and_by_what() -> None:
    found = figures(ROWS, TIMES, GATE, LOAD, WORK, 1000.0)
    one = {"case": "cfg", "way": "fast", **found, "predicted_gib": 39.0}
    one["gains"] = {"rollout": 2.0, "update": 1.5, "epoch": 1.0}
    gap = {"seconds": 0.25, "phase": "update"}
    shares = {"rollout": 0.125, "update": 0.5}
    one["waiting"] = {"seconds": 9.5, "idle": 0.25, "phases": shares, "gaps": [gap]}
    text = page(ABOUT, [one])
    assert page_name(ABOUT) == "sd3.5-medium-shape_nvidia-h200_2026-01-02.md"
    part = {**ABOUT, "cases": ["cfg", "cfg_kl"]}
    assert page_name(part) == "sd3.5-medium-shape-cfg-cfg-kl_nvidia-h200_2026-01-02.md"
    real = {**part, "cases": ["cfg"], "text": "real-size", "pictures": "words"}
    assert page_name(real) == "sd3.5-medium-shape-cfg-real-text-words_nvidia-h200_2026-01-02.md"
    said = ["NVIDIA H200", "2026-01-02", "torch 2.11.0", "diffusers 0.42.1", "transformers 5.24.0"]
    words = " ".join(text.split())
    assert all(word in words for word in [*said, ABOUT["command"], "700 TFLOP/s", "48 images"])
    cells = ("cfg", "fast", "20.00", "80.0", "9.00", "2.40 + 0.20 + 0.50 + 6.00 + 0.20")
    shares_of_peak = ("40.0%, 72.0%, 58.7%", "41.0, 39.0", "1.0e-06, 5.0e-06")
    line = (*cells, *shares_of_peak, "2.00, 1.50, 1.00 (no gain)")
    assert f"| {' | '.join(line)} |" in text
    told = "| cfg | fast | 9.50 | 25.0% | rollout 12.5%, update 50.0% | 250.0 ms (update) |"
    assert told in text


# Without what a bare GPU machine lacks: an import of any of them is an error.
RUN = """
import sys
sys.modules.update(dict.fromkeys(("prefect", "mlflow", "rapidocr")))
from benchmarks import speed_cases, trainer_speed
speed_cases.find_spec = lambda name: None

train, watches = trainer_speed.train, []

def looked_on(config, run, around):
    train(config, run, lambda watch: watches.append(watch) or around(watch))

trainer_speed.train = looked_on
trainer_speed.main(sys.argv[1:])
print(*({one.phase for one in each.spans} >= {"rollout", "score", "update"} for each in watches))
"""
SMALL = ("--size", "small", "--device", "cpu", "--rank", "4", "--steps", "1", "--cases", "cfg_kl")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[str]]:
    out = tmp_path_factory.mktemp("speed")
    words = [*SMALL, "--out", str(out), "--page", str(out / "pages")]
    fewer = ("rollout.num_inference_steps=3", "policy.vae.dtype=bfloat16")
    words += [word for one in fewer for word in ("--set", one)]
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out, done.stdout.splitlines()


def test_the_trainer_itself_is_measured(made) -> None:
    out, said = made
    known, *found = [json.loads(line) for line in said if line.startswith("{")]
    assert known["rewards"] == "jpeg_compressibility"
    assert [(one["case"], one["way"]) for one in found] == [("cfg_kl", "stock"), ("cfg_kl", "fast")]
    for one in found:
        run = out / "speed-runs" / f"cfg_kl-{one['way']}"
        steps = [
            json.loads(line) for line in (run / "train/metrics.jsonl").read_text().splitlines()
        ]
        assert len(steps) == 2, "one that does not count, and one that is timed"
        timed = steps[1]
        assert timed["grad_norm"] > 0, "it has learned something"
        assert one["seconds"]["epoch"] == timed["time/step"]
        by_host = {"rollout": one["seconds"]["rollout"] + one["seconds"]["decode"]}
        by_host |= {name: one["seconds"][name] for name in ("score", "update")}
        for phase, seconds in by_host.items():  # there is no device that it is ahead of
            assert seconds == pytest.approx(timed[f"time/{phase}"], rel=0.05, abs=2e-3)
        assert one["seconds"]["decode"] > 0
        assert one["images_per_second"] == pytest.approx(8 / one["seconds"]["rollout"])
        assert one["sample_steps_per_second"] == pytest.approx(8 * 3 / one["seconds"]["update"])
        assert one["gap"]["max"] == timed["ratio/rollout_gap_max"] < 1e-3
        assert "step    2/2" in (run / "train/trainer.log").read_text()
    assert said[-1] == "True True True True", "a profiler sees all phases of every step"
    stock, fast = found
    ratio = stock["seconds"]["update"] / fast["seconds"]["update"]
    assert fast["gains"]["update"] == pytest.approx(ratio)
    assert "gains" not in stock


def test_a_run_ends_in_a_table_and_a_page(made) -> None:
    out, said = made
    rows = [line for line in said if line.startswith("| cfg_kl |")]
    assert len(rows) == 2
    (written,) = (out / "pages").iterdir()
    text = written.read_text()
    assert said[-2] == str(written)
    assert all(line in text for line in rows)
    assert str(out) not in text, "where it was measured is nobody's business"


@pytest.mark.parametrize("words", [("--steps", "0"), ("--idle", "--device", "cpu")])
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as refused:
        trainer_speed.main(["--out", "unused", "--size", "small", "--device", "cpu", *words])
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--set", "nonsense.key=1"), "nonsense"),
        (("--rank", "0"), "--rank: give 1 or more, not 0"),
        (("--steps", "-1"), "--steps: give 1 or more, not -1"),
        (("--out", "/dev/null/below"), "--out /dev/null/below: cannot be a folder"),
        (("--page", "/dev/null/below"), "--page /dev/null/below: cannot be a folder"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_built(
    tmp_path: Path, capsys, words: tuple[str, ...], expected: str
) -> None:
    earlier = tmp_path / "speed-runs" / "cfg-stock"
    earlier.mkdir(parents=True)
    try:
        code = trainer_speed.main(["--out", str(tmp_path), *SMALL, *words])
    except SystemExit as refused:
        code = refused.code
    assert code == 2
    assert expected in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [earlier.parent]
    assert earlier.is_dir()


def test_what_cannot_be_planned_costs_no_earlier_run(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = tmp_path / "speed-runs" / "cfg-stock"
    earlier.mkdir(parents=True)
    monkeypatch.setattr(trainer_speed, "build_pipeline", lambda *_: None)
    words = ["--out", str(tmp_path), *SMALL, "--set", "rollout.micro_batch_size=7"]
    assert trainer_speed.main(words) == 3
    assert "7 does not divide" in capsys.readouterr().err
    assert earlier.is_dir()


def test_a_case_is_measured_once() -> None:
    words = ["--out", "unused", *SMALL, "--cases", "cfg", "window", "cfg"]
    assert trainer_speed.arguments_of(words).cases == ["cfg", "window"]


def test_every_case_has_a_line_in_the_help() -> None:
    assert all(f"\n    {case} " in str(trainer_speed.__doc__) for case in CASES)
