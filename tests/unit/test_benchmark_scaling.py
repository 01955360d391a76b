"""The benchmark of ranks: what it computes of runs, which it starts, and real runs of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.errors import ConfigError, PlanError
from atelier.training.distributed import World
from atelier.training.measures import Span, Stopwatch
from benchmarks import scaling
from benchmarks.communication import communication, of_cpu, of_gpu
from benchmarks.idle import Interval, Recorded, recorded
from benchmarks.scaling import arguments_of, opened, require_ranks, wanted
from benchmarks.scaling_cases import CASES, Sweep
from benchmarks.scaling_figures import efficiency, equivalence, figures, measured
from benchmarks.scaling_page import page, page_name
from tests.support.ranks import on_ranks
from tests.support.runs import environment

HUB = {
    "sd35m": "stabilityai/stable-diffusion-3.5-medium",
    "deepgen": "deepgenteam/DeepGen-1.0-diffusers",
    "janus": "deepseek-community/Janus-Pro-7B",
}
UPDATE = [Span("rollout", 0.0, 10.0), Span("update", 10.0, 20.0)]


def row(step: float, loss: float, norm: float, **more: float) -> dict[str, float]:
    times = {"time/rollout": 1.0, "time/score": 0.5, "time/update": 2.0, "time/step": step}
    return {**times, "loss/policy": loss, "grad_norm": norm, **more}


def found(ranks: int, prompts: int, speed: float, engine: str = "ddp", **more) -> dict:
    about = {"case": "sd35m", "size": "small", "device": "CPU", "overrides": "", "steps": 2}
    losses = {"loss": [0.5, -0.25], "grad_norm": [2.0, 4.0]}
    made = {"engine": engine, "ranks": ranks, "prompts": prompts, "images_per_second": speed}
    return {**about, **made, **losses, **more}


def test_speeds_are_of_timed_steps_and_losses_of_all_but_the_profiled() -> None:
    gib = "memory/peak_gib"
    rows = [row(9.0, 1.0, 2.0, **{gib: 7.0}), row(4.0, 3.0, 4.0), row(6.0, 5.0, 6.0)]
    facts = figures([*rows, row(50.0, 7.0, 8.0, **{gib: 99.0})], steps=2, images=20)
    assert facts["seconds"] == {
        "rollout": 1.0,
        "score": 0.5,
        "update": 2.0,
        "step": 5.0,
        "rest": 1.5,
    }
    assert facts["images_per_second"] == 4.0
    assert (facts["loss"], facts["grad_norm"]) == ([1.0, 3.0, 5.0], [2.0, 4.0, 6.0])
    assert facts["peak_gib"] == 7.0


def test_efficiency_is_of_a_rank_beside_one_alone() -> None:
    results = [found(1, 2, 10.0), found(4, 8, 36.0), found(1, 8, 5.0), found(4, 8, 30.0, "zero2")]
    assert efficiency(results[1], results, 2) == pytest.approx(0.9)
    assert efficiency(results[1], results, 8) == pytest.approx(1.8)
    assert efficiency(results[3], results, 2) == pytest.approx(0.75)
    assert efficiency(results[1], results, 16) is None
    assert efficiency({**results[1], "device": "other"}, results, 2) is None


def test_differences_are_to_one_rank_with_the_same_prompts() -> None:
    one = found(1, 8, 5.0)
    other = found(4, 8, 36.0, loss=[0.5, -0.5], grad_norm=[1.0, 4.0])
    assert equivalence(other, [one, other]) == {
        "loss": {"first": 0.0, "most": 0.25},
        "grad_norm": {"first": 0.5, "most": 0.5},
    }
    assert equivalence(one, [one, other]) is None
    assert equivalence(other, [found(1, 2, 10.0), other]) is None


def test_a_run_that_failed_is_measured_again_and_the_last_result_counts() -> None:
    first, again = found(2, 4, 1.0), found(2, 4, 3.0)
    failed = {**found(4, 8, 0.0), "failed": "exit code 1"}
    assert measured([first, failed, again]) == [again]


def test_collectives_are_counted_once_inside_the_update() -> None:
    seen = [Interval(8.0, 11.0), Interval(12.0, 14.0), Interval(13.0, 15.0), Interval(19.0, 22.0)]
    others = [Interval(10.0, 10.5), Interval(12.5, 16.0)]
    told = communication(seen, others, UPDATE)
    assert told == {"seconds": 10.0, "share": pytest.approx(0.5), "exposed": pytest.approx(0.2)}
    assert communication(seen, None, UPDATE)["exposed"] is None


def test_what_nccl_computes_is_told_from_other_kernels() -> None:
    watch, gpu = Stopwatch(), DeviceType.CUDA
    watch.spans = list(UPDATE)
    events = [
        Recorded("ncclDevKernel_AllReduce_Sum_f32_RING_LL", gpu, False, Interval(11.0, 13.0)),
        Recorded("nccl:all_reduce", gpu, True, Interval(10.0, 20.0)),  # a range around it
        Recorded("gemm", gpu, False, Interval(12.0, 14.0)),
        Recorded("cudaLaunchKernel", DeviceType.CPU, False, Interval(10.0, 20.0)),
    ]
    told = of_gpu(events, watch)
    assert told == {"seconds": 10.0, "share": pytest.approx(0.2), "exposed": pytest.approx(0.1)}


def told_by_a_rank(world: World) -> dict[str, float | None]:
    """One rank comes late, and the other's collective waits for it."""
    watch = Stopwatch()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        world.gather("before")
        with watch("update"):
            time.sleep(0.5 * world.rank)
            dist.barrier()
    return of_cpu(recorded(profiler), watch)


def test_gloo_is_seen_by_a_real_profiler() -> None:
    waited, late = on_ranks(told_by_a_rank, 2)
    assert 0 < late["share"] < 0.5 < waited["share"] <= 1
    assert waited["exposed"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--ranks", "1", "2", "8", "--engines", "ddp", "zero2"),
            # One rank with all prompts, and eight with two each, which is all prompts, once.
            [
                *(("ddp", 1, 2), ("ddp", 2, 4), ("zero2", 2, 4), ("ddp", 8, 16), ("zero2", 8, 16)),
                *(("ddp", 1, 16), ("ddp", 2, 16), ("zero2", 2, 16)),
            ],
        ),
        (("--ranks", "4", "--work", "strong", "--all-prompts", "12"), [("ddp", 4, 12)]),
    ],
)
def test_which_runs_are_made(words: tuple[str, ...], expected: list) -> None:
    assert list(wanted(arguments_of(["--out", "unused", "--case", "sd35m", *words]))) == expected


def test_ranks_are_those_that_are_there() -> None:
    options = argparse.Namespace(device="cuda", ranks=None)
    require_ranks(options, {"gpus": 4})
    assert options.ranks == [1, 2, 4]
    with pytest.raises(ConfigError, match="4 GPUs are there"):
        require_ranks(argparse.Namespace(device="cuda", ranks=[8]), {"gpus": 4})
    with pytest.raises(ConfigError, match="0 GPUs are there"):
        require_ranks(argparse.Namespace(device="cuda", ranks=None), {"gpus": 0})


MACHINE = {"gpus": 0, "name": None, "gib": None, "cores": 2, "versions": {}}
ON_CPU = ("--case", "sd35m", "--size", "small", "--device", "cpu", "--ranks", "1", "2")


def with_nothing_built(monkeypatch: pytest.MonkeyPatch) -> list:
    """What would have been done in processes of its own; the machine is told."""
    done = []

    def told(function, *arguments):
        if function is scaling.machine:
            return MACHINE
        return done.append(arguments)

    monkeypatch.setattr(scaling, "elsewhere", told)
    return done


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--ranks", "0"), "--ranks: give 1 or more, not 0"),
        (("--ranks", "-2"), "--ranks: give 1 or more, not -2"),
        (("--prompts", "0"), "--prompts: give 1 or more, not 0"),
        (("--prompts", "-1"), "--prompts: give 1 or more, not -1"),
        (("--all-prompts", "0"), "--all-prompts: give 1 or more, not 0"),
        (("--steps", "0"), "--steps: give 1 or more, not 0"),
        (("--steps", "many"), "'many' is not a whole number"),
        (("--set", "nonsense.key=1"), "nonsense"),
        (("--out", "/dev/null/below"), "--out /dev/null/below: cannot be a folder"),
        (("--page", "/dev/null/below"), "--page /dev/null/below: cannot be a folder"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, words: tuple[str, ...], expected: str
) -> None:
    built = with_nothing_built(monkeypatch)
    try:
        code = scaling.main(["--out", str(tmp_path), *ON_CPU, *words])
    except SystemExit as refused:
        code = refused.code
    assert code == 2
    assert expected in capsys.readouterr().err
    assert built == []
    assert not (tmp_path / "results.jsonl").exists()


def test_settings_that_one_run_cannot_have_are_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    config, made = Sweep.config, []

    def picky(sweep: Sweep, engine: str, ranks: int, prompts: int):
        if ranks == 2:
            raise ConfigError("not with two")
        return config(sweep, engine, ranks, prompts)

    def aside(_, size: str, folder: Path) -> None:
        made.append(size)
        folder.mkdir()

    with_nothing_built(monkeypatch)
    told = scaling.elsewhere
    monkeypatch.setattr(
        scaling, "elsewhere", lambda *one: told(*one) if len(one) == 1 else aside(*one)
    )
    monkeypatch.setattr(Sweep, "config", picky)
    monkeypatch.setattr(scaling, "plan", lambda _: None)
    monkeypatch.setattr(scaling, "result", lambda *_: found(1, 2, 1.0, **{**FIGURES, **SMALL}))
    assert scaling.main(["--out", str(tmp_path), *ON_CPU, "--work", "weak"]) == 1
    with opened(tmp_path / "results.jsonl") as (results, _):
        pass
    assert made == ["small"]
    assert [one.get("failed") for one in results] == [None, "not with two"]
    assert "not with two" in capsys.readouterr().out


SMALL = {"case": "sd35m", "size": "small", "device": "CPU"}
FIGURES = {"seconds": {}, "communication": {}, "peak_gib": None, "predicted_gib": 1.0}


def test_more_steps_are_another_measurement() -> None:
    two, five = found(1, 2, 10.0), found(1, 2, 11.0, steps=5)
    assert measured([two, five]) == [two, five]
    both = found(2, 4, 20.0, steps=5)
    assert efficiency(both, [two, five, both], 2) == pytest.approx(20 / 2 / 11)


def test_results_go_on_after_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"a": 1}\n{"b": ')
    with opened(file) as (results, lines):
        lines.append({"c": 3})
    assert results == [{"a": 1}]
    assert file.read_text() == '{"a": 1}\n{"c":3}\n'


@pytest.mark.parametrize("engine", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("case", CASES)
def test_every_case_is_planned_for_eight_ranks(case: str, engine: str) -> None:
    """On the published models, whose sizes are known without their files."""
    sweep = Sweep(case, CASES[case].sizes[0], Path(HUB[case]))
    if (case, engine) == ("janus", "zero3"):
        with pytest.raises(PlanError, match="3 would gather the weights for every token"):
            plan(sweep.config(engine, 8, 64))
        return
    made = {
        ranks: plan(sweep.config(engine, ranks, CASES[case].prompts * ranks)) for ranks in (2, 8)
    }
    assert made[8].accumulation == made[2].accumulation
    assert made[8].pictures == 4 * made[2].pictures
    held = [sum(one.memory.held.values()) for one in made.values()]
    assert held[0] > held[1] if engine != "ddp" else held[0] == held[1]


def test_a_page_says_what_was_measured_and_what_was_not() -> None:
    seconds = {"step": 2.0, "rollout": 1.0, "score": 0.25, "update": 0.5, "rest": 0.25}
    shared = {"share": 0.25, "exposed": None, "seconds": 0.5}
    about = {
        **{"recipe": "sd35m/flow-grpo-fast", "date": "2026-01-02", "command": "python -m it"},
        **{"versions": {"torch": "2.11.0"}, "settings": "`a=b`", "steps": 2, "cores": 2},
        **{"seconds": seconds, "communication": shared, "images": 32, "peak_gib": None},
    }
    one, two = ({**found(ranks, 2 * ranks, 10.0 * ranks), **about} for ranks in (1, 2))
    failed = {**about, **found(2, 4, 0.0, "zero2"), "failed": "exit code 1: out of memory"}
    text = page([one, two, failed], per_rank=2, in_all=4)
    assert page_name(one) == "scaling_sd35m-small_cpu_2026-01-02.md"
    cells = ("ddp", "2", "32", "20.00", "1.000", "2.00: 1.00 + 0.25 + 0.50 + 0.25", "25.0%")
    assert f"| {' | '.join((*cells, '-', '-'))} |" in text
    assert "- zero2, 2 ranks, 4 prompts: exit code 1: out of memory" in text
    assert "2 CPU cores" in text
    assert "| zero2" not in text
    assert "(16 prompts)" not in page([one, two], per_rank=2, in_all=16), "a table without rows"


# Without what a bare GPU machine lacks: an import of any of them is an error.
RUN = """
import sys
sys.modules.update(dict.fromkeys(("prefect", "mlflow", "rapidocr")))
from benchmarks import scaling
if __name__ == "__main__":
    sys.exit(scaling.main(sys.argv[1:]))
"""
FEW = ("rollout.num_inference_steps=6", "train.updates_per_step=1")


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(repository_root() / "src"), str(repository_root())])
    return subprocess.run(command, env=environment(PYTHONPATH=path), capture_output=True, text=True)


@pytest.mark.slow
def test_real_runs_are_measured_once_and_written_at_once(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"  # a file, which its own processes can read again
    script.write_text(RUN)
    words = ["--out", str(tmp_path), "--case", "sd35m", "--size", "small", "--device", "cpu"]
    words += ["--ranks", "1", "2", "--prompts", "1", "--all-prompts", "2", "--steps", "1"]
    words += [*(word for one in FEW for word in ("--set", one)), "--page", str(tmp_path / "pages")]
    command = [sys.executable, str(script), *words]
    done = started(command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = [json.loads(one) for one in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(one["ranks"], one["prompts"]) for one in results] == [(1, 1), (2, 2), (1, 2)]
    one, two, _ = results
    assert one["communication"]["share"] == 0
    assert 0 < two["communication"]["share"] < 1
    assert all(norm > 0 for norm in two["grad_norm"])
    assert equivalence(two, results)["loss"]["most"] < 1e-5
    assert equivalence(two, results)["grad_norm"]["first"] < 1e-5
    runs = tmp_path / "scaling-runs"
    assert not list(runs.glob("*/train/checkpoints/*")), "stopped before one is written"
    (written,) = (tmp_path / "pages").iterdir()
    assert str(tmp_path) not in written.read_text(), "where it was measured is nobody's business"

    again = started(command)
    assert again.returncode == 0, again.stderr[-3000:]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3
    wrong = [*command, "--set", "rollout.micro_batch_size=7"]
    failed = started(wrong)
    assert failed.returncode == 1
    last = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert "rollout.micro_batch_size: 7 does not divide" in last["failed"]
