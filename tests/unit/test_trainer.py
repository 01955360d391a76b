"""The loop on a token policy: it learns, refuses to learn from an outage, and goes on unchanged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.algorithms.grpo import Grpo
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.data.samplers import SHARE
from atelier.errors import CheckpointError, Stopped
from atelier.rewards.base import Missing, Scores
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory
from atelier.training import experience, measures
from atelier.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from atelier.training.experience import Collector
from atelier.training.journal import Journal
from atelier.training.measures import Stopwatch
from atelier.training.session import Session, find_checkpoint
from atelier.training.trainer import Around, Trainer
from atelier.training.updates import Learner
from tests.support.metric_rows import results
from tests.support.toy_token_policy import Brightness, ToyTokenPolicy

WORLD = World(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(i, 0, f"prompt {i}", {}) for i in range(8)]


def config(**train) -> RunConfig:
    return RunConfig.model_validate(
        {
            "rollout": {"group_size": 8, "micro_batch_size": 8},
            "algorithm": {"clip_range": 0.2, "kl": "k3", **train.pop("algorithm", {})},
            "rewards": train.pop("rewards", {}),
            "train": {
                "steps": 20,
                "prompts_per_step": 4,
                "learning_rate": 0.02,
                "evaluate_every": 10,
                "checkpoint_every": 5,
                **train,
            },
        }
    )


def found(run: RunDirectory, digest: str = "digest", kept: Collection[str] = ("ema",)):
    with closing(Journal(run, WORLD)) as journal:
        return find_checkpoint(run.checkpoints, digest, journal, kept)


def run_trainer(
    root: Path,
    settings: RunConfig,
    missing_every: int = 0,
    policy: ToyTokenPolicy | None = None,
    prompts: Sequence[Prompt] = PROMPTS,
    around: Around = nullcontext,
) -> list[dict]:
    run = RunDirectory(root)
    policy = policy or ToyTokenPolicy(settings.train.seed)
    policy.prepare_reference()
    checkpoint = found(run)
    journal = Journal(run, WORLD)
    if checkpoint is not None:
        policy.module.load_state_dict(dict(checkpoint.weights))
    engine = make_engine(policy.module, policy.trainable(), settings.train, settings.launch, WORLD)
    session = Session(settings, "digest", WORLD)
    if checkpoint is not None:
        engine.load_optimizer_state(checkpoint.optimizer)
        session.restore(checkpoint)
        journal.go_on_from(checkpoint.state)
    session.start(engine)
    try:
        with RewardSet([Reward(Brightness(missing_every))]) as rewards:
            collector = Collector(settings, policy, rewards, WORLD, prompts)
            algorithm = Grpo.of(settings)
            learner = Learner(settings, policy, algorithm, engine, session, journal, WORLD)
            parts = collector, learner, session, journal, WORLD, prompts
            Trainer(settings, *parts, around).run()
    finally:
        journal.close()
    return rows(run)


def rows(run: RunDirectory) -> list[dict]:
    return results(run.metrics.read_text().splitlines())


def test_a_token_policy_learns(tmp_path: Path) -> None:
    history = run_trainer(tmp_path, config())
    assert [row["step"] for row in history] == list(range(1, 21))
    first, last = history[0]["reward/mean"], history[-1]["reward/mean"]
    assert last > first + 0.2
    images = RunDirectory(tmp_path).periodic_evaluation("ocr", 10) / "images"
    assert len(list(images.glob("*.png"))) == 8


def test_a_step_can_be_looked_on_at(tmp_path: Path) -> None:
    """From before its first phase to after its last, and before it is written down."""
    metrics, seen = RunDirectory(tmp_path).metrics, []

    @contextmanager
    def looking_on(watch: Stopwatch) -> Iterator[None]:
        assert not watch.spans
        yield
        written = len(metrics.read_text().splitlines())
        seen.append((written, [one.phase for one in watch.spans]))
        assert all(one.start <= one.end for one in watch.spans)

    run_trainer(tmp_path, config(steps=3), around=looking_on)
    phases = ["rollout", "score", "update"]
    last = ["rollout", "score", "samples", "update"]
    assert seen == [(0, phases), (1, phases), (2, last)]


def test_the_seconds_of_a_phase_are_those_of_all_its_spans(monkeypatch) -> None:
    ticks = iter([0.0, 1.0, 3.0, 4.0, 4.5, 6.0, 7.0, 10.0])
    monkeypatch.setattr(measures.time, "perf_counter", lambda: next(ticks))
    watch = Stopwatch()
    for phase in ("rollout", "score", "rollout"):
        with watch(phase):
            pass
    assert watch.seconds() == {"time/rollout": 3.0, "time/score": 0.5, "time/step": 10.0}


def test_the_reference_holds_the_policy_back(tmp_path: Path) -> None:
    free = run_trainer(tmp_path / "free", config())
    held = run_trainer(tmp_path / "held", config(algorithm={"beta": 2.0}))
    assert held[-1]["kl"] > 0
    assert held[-1]["reward/mean"] < free[-1]["reward/mean"]


def test_missing_scores_leave_the_statistics(tmp_path: Path) -> None:
    settings = config(steps=2, rewards={"min_valid_share": 0.5})
    history = run_trainer(tmp_path, settings, missing_every=4)
    assert history[0]["reward/valid_share"] == 0.75


def test_every_step_says_how_long_rewards_took_and_what_they_explain(tmp_path: Path) -> None:
    run_trainer(tmp_path, config(steps=2))
    for line in RunDirectory(tmp_path).metrics.read_text().splitlines():
        row = json.loads(line)
        mean, largest = (row[f"time/reward/brightness/{name}"] for name in ("mean", "max"))
        assert 0 <= mean <= largest < 60
        assert row["reward/brightness/advantage_share"] == pytest.approx(1)


@contextmanager
def stopped_at(monkeypatch, stop: int) -> Iterator[None]:
    """Inside, a trainer is interrupted before it records a step."""
    record = Journal.step

    def step_or_stop(self, step: int, *rest) -> None:
        if step == stop:
            raise KeyboardInterrupt
        record(self, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "step", step_or_stop)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_keeps_the_best_and_worst_images_of_some_steps(
    tmp_path: Path, monkeypatch, ahead: bool
) -> None:
    """Stopped and resumed, it leaves the same files; none of this changes a number."""
    own = {"one_step_off": ahead, "in_flight": "store", "rewards": {"min_valid_share": 0.5}}
    settings = config(**own)
    history = run_trainer(tmp_path / "whole", settings, missing_every=4)

    with stopped_at(monkeypatch, 11):
        run_trainer(tmp_path / "parts", settings, missing_every=4)
    run_trainer(tmp_path / "parts", settings, missing_every=4)
    runs = [RunDirectory(tmp_path / name) for name in ("whole", "parts")]
    kept = [
        {path.relative_to(run.samples): path.read_bytes() for path in run.samples.glob("step-*0/*")}
        for run in runs
    ]
    assert kept[0] == kept[1]
    assert {str(path.parent) for path in kept[0]} == {"step-000010", "step-000020"}
    content = json.loads((runs[0].step_samples(10) / "samples.json").read_text())
    assert all(one["weights"] == {"brightness": 1.0} for one in content["samples"])
    by_place = {
        place: [one for one in content["samples"] if one["place"] == place]
        for place in ("best", "worst", "missing")
    }
    assert [len(entries) for entries in by_place.values()] == [6, 6, 4]
    assert by_place["best"][0]["total"] > by_place["worst"][0]["total"]
    assert {one["missing"] for one in by_place["missing"]} == {"brightness: the toy reward is out"}
    for one in (*by_place["best"], *by_place["worst"]):
        image = np.asarray(Image.open(runs[0].step_samples(10) / one["image"]))
        assert image.mean() / 255 == pytest.approx(one["scores"]["brightness"], abs=1e-6)
        assert one["prompt"].startswith("prompt ")
    none = RunConfig.model_validate({**settings.model_dump(), "tracking": {"samples_every": 0}})
    assert run_trainer(tmp_path / "none", none, missing_every=4) == history
    assert not RunDirectory(tmp_path / "none").samples.exists()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_curriculum_goes_on_where_it_was(tmp_path: Path, monkeypatch, ahead: bool) -> None:
    """Also with images sampled ahead: the first step of a level has prompts of it, and no step
    before it has."""
    prompts = [
        Prompt(i, 0, f"prompt {i}", {"curriculum": {"bin": 1 + i // 8, "cell": f"cell {i // 8}"}})
        for i in range(16)
    ]
    own = config(one_step_off=ahead, in_flight="store").model_dump()
    own["data"]["curriculum"] |= {"scores": "scores.jsonl", "levels": 2}
    settings = RunConfig.model_validate(own)
    history = run_trainer(tmp_path / "whole", settings, prompts=prompts)
    assert [row["curriculum/level"] for row in history] == [1] * 10 + [2] * 10
    assert all(row["curriculum/bin_1"] == 1 for row in history[:10])
    harder = [row["curriculum/bin_2"] for row in history[10:]]
    assert sum(harder) == pytest.approx(5, abs=1)  # epochs of 16 prompts, of which 8 are harder
    assert history[0]["curriculum/cell/cell_0"] == 1

    with stopped_at(monkeypatch, 13):
        run_trainer(tmp_path / "parts", settings, prompts=prompts)
    assert run_trainer(tmp_path / "parts", settings, prompts=prompts) == history


def test_a_group_with_too_few_scores_teaches_nothing_and_is_counted(tmp_path: Path) -> None:
    """Of eight images six have a score: enough of a group, or too few."""
    for enough, sparse in ((0.75, 0.0), (0.8, 1.0)):
        own = {"min_valid_share": 0.5, "min_valid_in_group": enough}
        (row,) = run_trainer(tmp_path / str(enough), config(steps=1, rewards=own), missing_every=4)
        assert row["reward/valid_share"] == 0.75
        assert row["advantage/sparse_group_share"] == sparse
        assert (row["grad_norm"] == 0) == bool(sparse)
        assert row["advantage/zero_std_share"] == sparse


def test_an_outage_longer_than_a_deadline_changes_no_number(tmp_path: Path, monkeypatch) -> None:
    """Some images of a batch have a score when the service goes away; they keep it."""
    monkeypatch.setattr(experience, "pause_seconds", lambda round, deadline: 0.01)
    undisturbed = run_trainer(tmp_path / "undisturbed", config(steps=3))
    score, calls = Brightness.score, []

    def out(self, batch):
        calls.append(len(batch))
        scores = score(self, batch)
        if len(calls) in (5, 6):  # asked again, of no avail
            raise TimeoutError("the service is away")
        if len(calls) == 4:
            lost = [Missing("cut off", retryable=True)] * 4
            return Scores(scores.name, [*scores.values[:4], *lost])
        return scores

    monkeypatch.setattr(Brightness, "score", out)
    assert run_trainer(tmp_path / "again", config(steps=3, rewards={"replay": 3})) == undisturbed
    assert len(calls) == 15
    calls.clear()
    with pytest.raises(Stopped, match=r"only 88%.*cut off"):
        run_trainer(tmp_path / "stops", config(steps=3, rewards={"replay": 0}))


def test_an_outage_stops_the_run_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"min_valid_share.*the toy reward is out"):
        run_trainer(tmp_path, config(steps=2), missing_every=2)
    assert RunDirectory(tmp_path).metrics.read_text() == ""


def test_a_gradient_that_is_no_number_stops_the_run_before_it_is_saved(tmp_path: Path) -> None:
    settings = config(checkpoint_every=1, keep_checkpoints=1)
    policy, calls = ToyTokenPolicy(settings.train.seed), []

    def diverge(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * (float("nan") if len(calls) > 12 else 1.0)

    next(iter(policy.trainable().values())).register_hook(diverge)
    with pytest.raises(Stopped, match=r"step \d: the gradient's norm is nan.*learning_rate"):
        run_trainer(tmp_path, settings, policy=policy)
    kept = found(RunDirectory(tmp_path))
    assert kept.state.step == rows(RunDirectory(tmp_path))[-1]["step"] > 1
    assert all(value.isfinite().all() for value in kept.weights.values())
    assert run_trainer(tmp_path, settings)[-1]["step"] == 20


class Broken(ToyTokenPolicy):
    """Replays nothing but NaN."""

    def replay(self, *arguments, **rest):
        replayed = super().replay(*arguments, **rest)
        return replace(replayed, log_prob=replayed.log_prob * float("nan"))


def test_the_replay_gate_lets_no_nan_through(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"replayed rollout has a mean .* of nan"):
        run_trainer(tmp_path, config(), policy=Broken(0))


class Unsaid(ToyTokenPolicy):
    """Does not know how likely some of its actions were."""

    def rollout(self, module, samples):
        rollout = super().rollout(module, samples)
        rollout.old_log_probs[::2, 0] = float("nan")
        return rollout


def test_what_was_not_said_when_sampling_is_computed_anew(tmp_path: Path) -> None:
    said = config(steps=3)
    recomputed = said.rollout.model_copy(update={"old_log_prob": "recompute"})
    settings = said.model_copy(update={"rollout": recomputed})
    history = run_trainer(tmp_path / "unsaid", settings, policy=Unsaid(settings.train.seed))
    assert history == run_trainer(tmp_path / "said", settings)
    assert all(row["ratio/rollout_gap_max"] == 0 for row in history)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    run_trainer(tmp_path, config(steps=5))
    folder = RunDirectory(tmp_path).checkpoints
    good = load_checkpoint(latest_checkpoint(folder))
    name = next(iter(good.weights))
    odd = {**good.weights, name: good.weights[name] * float("inf")}
    with pytest.raises(Stopped, match="not finite"):
        save_checkpoint(folder, replace(good, weights=odd, state=replace(good.state, step=6)))
    assert [path.name for path in folder.iterdir()] == ["step-000005"]


def test_an_update_without_a_sample_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_trainer(tmp_path, config(steps=5))
    before = found(RunDirectory(tmp_path)).weights
    advantages = Grpo.advantages
    monkeypatch.setattr(
        Grpo, "advantages", lambda *own: replace(one := advantages(*own), kept=one.kept & False)
    )
    assert run_trainer(tmp_path, config(steps=6))[-1]["grad_norm"] == 0.0
    after = found(RunDirectory(tmp_path))
    assert after.state.step == 6
    assert all(torch.equal(value, after.weights[name]) for name, value in before.items())


def test_resumed_in_the_middle_equals_undisturbed(tmp_path: Path) -> None:
    whole = run_trainer(tmp_path / "whole", config())
    run_trainer(tmp_path / "parts", config(steps=7))
    latest = latest_checkpoint(RunDirectory(tmp_path / "parts").checkpoints)
    assert latest is not None
    parts = run_trainer(tmp_path / "parts", config())
    assert parts == whole
    ours, theirs = (
        load_checkpoint(latest_checkpoint(RunDirectory(tmp_path / name).checkpoints))
        for name in ("whole", "parts")
    )
    assert ours.state.updates == theirs.state.updates == 40
    assert all(torch.equal(v, theirs.weights[k]) for k, v in ours.weights.items())
    assert all(torch.equal(v, theirs.ema[k]) for k, v in ours.ema.items())


def test_a_mixture_goes_on_where_it_was(tmp_path: Path, monkeypatch) -> None:
    """Its draws have no state: every step is a function of the table, the seed and its number."""
    prompts = [
        Prompt(i, i % 2, f"prompt {i}", {"dataset": "ab"[i % 2], SHARE: 1.0 + 2 * (i % 2)})
        for i in range(16)
    ]
    history = run_trainer(tmp_path / "whole", config(), prompts=prompts)
    drawn = [row.get("mixture/b", 0.0) for row in history]
    assert sum(drawn) / len(drawn) == pytest.approx(0.75, abs=0.15)
    assert len({*drawn}) > 1
    with stopped_at(monkeypatch, 13):
        run_trainer(tmp_path / "parts", config(), prompts=prompts)
    assert run_trainer(tmp_path / "parts", config(), prompts=prompts) == history


def test_lines_after_the_checkpoint_are_cut_back(tmp_path: Path) -> None:
    run_trainer(tmp_path, config(steps=5))
    run = RunDirectory(tmp_path)
    with run.metrics.open("a") as file:
        file.write('{"step": 6, "reward/mean": 99}\n{"step": 7, "rew')
    history = run_trainer(tmp_path, config(steps=6))
    assert [row["step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["reward/mean"] < 1


def test_a_resume_keeps_the_event_of_the_checkpoint_it_goes_on_from(
    tmp_path: Path, monkeypatch
) -> None:
    settings = config(steps=3, checkpoint_every=1, evaluate_every=2)
    run_trainer(tmp_path / "whole", settings)

    with stopped_at(monkeypatch, 3):
        run_trainer(tmp_path / "parts", settings)
    run_trainer(tmp_path / "parts", settings)
    ours, theirs = (
        [one for _, one in read_json_lines(RunDirectory(tmp_path / name).events)]
        for name in ("whole", "parts")
    )
    # The gate looks at each life's first step; checkpoints are written beside the steps.
    gate, saved = {**ours[0], "step": 3}, [one for one in ours if one["event"] == "checkpoint"]
    assert [one for one in theirs if one != gate and one not in saved] == [
        one for one in ours if one not in saved
    ]
    assert [one["step"] for one in saved] == [1, 2, 3]
    assert [one for one in theirs if one["event"] == "checkpoint"] == saved


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run_trainer(tmp_path, config(steps=1))
    with pytest.raises(CheckpointError, match="another configuration"):
        found(RunDirectory(tmp_path), "other")


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys) -> None:
    run_trainer(tmp_path, config(steps=10))
    run = RunDirectory(tmp_path)
    newest = latest_checkpoint(run.checkpoints)
    (newest / "ema.safetensors").write_bytes(b"gone")
    assert found(run).state.step == 5
    assert "ema.safetensors" in capsys.readouterr().out


def test_accumulation_does_not_change_the_update(tmp_path: Path) -> None:
    """Micro-batches of 8 or 16 add up to the same updates."""
    small = config(steps=3, updates_per_step=1)
    large = RunConfig.model_validate(
        {**small.model_dump(), "rollout": {**small.rollout.model_dump(), "micro_batch_size": 16}}
    )
    run_trainer(tmp_path / "small", small)
    run_trainer(tmp_path / "large", large)
    ours, theirs = (
        load_checkpoint(latest_checkpoint(RunDirectory(tmp_path / name).checkpoints)).weights
        for name in ("small", "large")
    )
    assert all((v - theirs[k]).abs().max() < 1e-5 for k, v in ours.items())


def test_the_only_checkpoint_damaged_is_an_error_and_stays(tmp_path: Path) -> None:
    """Training anew would cut the metrics to nothing and overwrite what may still be mended."""
    run_trainer(tmp_path, config(steps=1))
    run = RunDirectory(tmp_path)
    (latest_checkpoint(run.checkpoints) / "ema.safetensors").write_bytes(b"gone")
    with pytest.raises(CheckpointError, match=r"ema\.safetensors.*no other checkpoint is whole"):
        found(run)
    assert (latest_checkpoint(run.checkpoints) / "ema.safetensors").read_bytes() == b"gone"


# One step off -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", ["drain", "store"])
def test_one_step_off_resumes_bit_equal(tmp_path: Path, monkeypatch, in_flight: str) -> None:
    """Stopped behind a checkpoint, with images in flight, and taken up again."""
    settings = config(steps=9, checkpoint_every=4, one_step_off=True, in_flight=in_flight)
    whole = run_trainer(tmp_path / "whole", settings)

    def stop(self, step: int, *rest) -> None:
        record(self, step, *rest)
        if step == 6:
            raise KeyboardInterrupt

    record = Journal.step
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            run_trainer(tmp_path / "parts", settings)
    assert run_trainer(tmp_path / "parts", settings) == whole
    ours, theirs = (
        load_checkpoint(latest_checkpoint(RunDirectory(tmp_path / name).checkpoints)).weights
        for name in ("whole", "parts")
    )
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    # Two updates a step: images are two updates old, but for those sampled where nothing was ahead.
    late = {1, 5, 9} if in_flight == "drain" else {1}
    assert [row["rollout/staleness"] for row in whole] == [
        0.0 if step in late else 2.0 for step in range(1, 10)
    ]
    stored = list(RunDirectory(tmp_path / "whole").checkpoints.glob("step-000008/in_flight-*"))
    assert bool(stored) == (in_flight == "store")


def test_images_ahead_that_a_checkpoint_lost_are_spoken_of(tmp_path: Path, capfd) -> None:
    settings = config(steps=3, checkpoint_every=1, one_step_off=True, in_flight="store")
    run_trainer(tmp_path, settings)
    checkpoints = RunDirectory(tmp_path).checkpoints
    shutil.rmtree(latest_checkpoint(checkpoints))
    run_trainer(tmp_path, settings)
    assert "holds no images sampled ahead" not in capfd.readouterr().out

    shutil.rmtree(latest_checkpoint(checkpoints))
    before = latest_checkpoint(checkpoints)
    (ahead,) = before.glob("in_flight-*")
    ahead.unlink()
    manifest = json.loads((before / "MANIFEST.json").read_text())
    del manifest[ahead.name]
    (before / "MANIFEST.json").write_text(json.dumps(manifest))
    assert [row["step"] for row in run_trainer(tmp_path, settings)] == [1, 2, 3]
    assert "of step 2 holds no images sampled ahead: step 3" in capfd.readouterr().out


def test_images_sampled_ahead_keep_their_prompts(tmp_path: Path, monkeypatch) -> None:
    """What is scored is what was sampled: a batch's prompts never meet another batch's images."""
    seen: list[tuple[int, list[str]]] = []
    roll_out = ToyTokenPolicy.rollout

    def noted(self, module, samples):
        rollout = roll_out(self, module, samples)
        seen.append((int(rollout.images.sum()), [one.prompt.text for one in samples]))
        return rollout

    scored: list[tuple[int, list[str]]] = []
    score = Brightness.score

    def checked(self, batch):
        if len(batch):
            total = sum(int(np.asarray(image).sum()) for image in batch.images)
            scored.append((total, list(batch.prompts)))
        return score(self, batch)

    monkeypatch.setattr(ToyTokenPolicy, "rollout", noted)
    monkeypatch.setattr(Brightness, "score", checked)
    run_trainer(tmp_path, config(steps=4, one_step_off=True))
    assert len(seen) == 16
    assert sorted(scored) == sorted(seen)


# More of the algorithm ---------------------------------------------------------------------------


def test_inner_epochs_train_on_the_same_images_again(tmp_path: Path) -> None:
    once = run_trainer(tmp_path / "once", config(steps=2))
    twice = run_trainer(tmp_path / "twice", config(steps=2, inner_epochs=2))
    assert twice[0]["reward/mean"] == once[0]["reward/mean"]
    assert twice[0]["ratio/mean_abs_dev"] > once[0]["ratio/mean_abs_dev"]
    newest = latest_checkpoint(RunDirectory(tmp_path / "twice").checkpoints)
    assert load_checkpoint(newest).state.updates == 8


def test_groups_that_teach_nothing_are_given_other_prompts(tmp_path: Path, monkeypatch) -> None:
    """A reward that is flat for two of the eight prompts: their groups are sampled anew."""
    score = Brightness.score

    def flat(self, batch):
        scores = score(self, batch)
        dull = [prompt in ("prompt 0", "prompt 1") for prompt in batch.prompts]
        values = [0.5 if one else value for one, value in zip(dull, scores.values, strict=True)]
        return Scores(scores.name, values)

    monkeypatch.setattr(Brightness, "score", flat)
    plain = run_trainer(tmp_path / "plain", config(steps=2))
    again = run_trainer(tmp_path / "again", config(steps=2, resample_rounds=3))
    assert sum(row["advantage/zero_std_share"] for row in plain) == 0.5
    assert sum(row["advantage/zero_std_share"] for row in again) == 0
    assert sum(row.get("resample/groups", 0) for row in again) >= 2


def test_the_kl_may_be_taken_off_the_rewards(tmp_path: Path) -> None:
    free = run_trainer(tmp_path / "free", config())
    held = run_trainer(
        tmp_path / "held", config(algorithm={"beta": 20.0, "kl_placement": "reward"})
    )
    assert "kl" not in held[-1]
    assert held[0]["reward/mean"] == free[0]["reward/mean"]
    assert held[-1]["reward/mean"] < free[-1]["reward/mean"]
