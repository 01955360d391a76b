"""Every check says ok on a healthy run, and warns or stops on the failure it is for."""

import pytest

from atelier.monitoring import Limits, Verdict, check_evaluations, check_training, worst


def run(steps=12, **changes):
    """Metrics of a healthy run; a change is a function of the step."""
    healthy = {
        "reward/std": lambda step: 0.3,
        "advantage/zero_std_share": lambda step: 0.1,
        "grad_norm": lambda step: 0.02 + 0.001 * (step % 3),
        "loss/policy": lambda step: 0.1,
        "nft/clean_rms": lambda step: 1.3 + 0.01 * step,
    } | changes
    return [{"step": s, **{name: f(s) for name, f in healthy.items()}} for s in range(1, steps + 1)]


def level(verdicts, check):
    return next(v.level for v in verdicts if v.check == check)


def test_a_healthy_run_is_ok_from_the_first_step_on():
    for steps in (0, 1, 5, 12):
        assert worst(check_training(run(steps))).level == "ok"
    assert worst([]).level == "ok"


@pytest.mark.parametrize(
    ("name", "late_value", "check", "expected"),
    [
        ("reward/std", 0.02, "reward_spread", "warn"),
        ("reward/std", 0.0, "reward_spread", "stop"),
        ("advantage/zero_std_share", 0.7, "zero_variance_groups", "warn"),
        ("advantage/zero_std_share", 1.0, "zero_variance_groups", "stop"),
        ("loss/policy", "nan", "finite", "stop"),
        ("nft/clean_rms", 1.6, "clean_latents", "warn"),
        ("nft/clean_rms", 0.5, "clean_latents", "stop"),
        ("grad_norm", float("inf"), "finite", "stop"),
    ],
)
def test_late_trouble_is_named(name, late_value, check, expected):
    healthy = run()[0][name]
    records = run(**{name: lambda step: healthy if step <= 6 else late_value})
    verdicts = check_training(records)
    assert level(verdicts, check) == expected
    assert worst(verdicts).check == check


@pytest.mark.parametrize(("norm", "expected"), [(0.1, "ok"), (0.5, "warn"), (5.0, "stop")])
def test_a_gradient_spike_is_seen_in_its_step(norm, expected):
    records = run(grad_norm=lambda step: norm if step == 12 else 0.02)
    assert level(check_training(records), "gradient_norm") == expected


def evaluation(**means):
    return {name: {"mean": value} for name, value in means.items()}


@pytest.mark.parametrize(
    ("proxy", "gold", "expected"),
    [(0.8, 0.7, "ok"), (0.8, 0.52, "warn"), (0.8, 0.4, "stop"), (0.5, 0.4, "ok")],
)
def test_a_proxy_that_rises_while_gold_falls_is_hacked(proxy, gold, expected):
    history = [
        evaluation(similarity=0.5, gold=0.5),
        evaluation(similarity=0.6, gold=0.6),
        evaluation(similarity=proxy, gold=gold),
    ]
    assert level(check_evaluations(history), "proxy_against_gold") == expected


def test_pictures_that_turn_dark_and_flat_stop_the_run_unless_gold_rose():
    """A run that was hacked: dark pixels .45 to .93, edges -60 %."""
    before = {"dark_share": 0.45, "edge_density": 0.2, "color_entropy": 4.0}
    after = {"dark_share": 0.93, "edge_density": 0.07, "color_entropy": 3.9}
    verdicts = check_evaluations([evaluation(**before), evaluation(**after)])
    assert level(verdicts, "image_drift/dark_share") == "stop"
    assert level(verdicts, "image_drift/edge_density") == "stop"
    assert level(verdicts, "image_drift/color_entropy") == "ok"
    earned = check_evaluations([evaluation(**before, gold=0.4), evaluation(**after, gold=0.6)])
    assert worst(earned).level == "warn"


def test_nothing_to_compare_is_ok():
    for history in ([], [evaluation(similarity=1.0)], [evaluation(gold=1.0)] * 2):
        assert worst(check_evaluations(history)).level == "ok"


def test_the_gravest_verdict_wins():
    verdicts = [Verdict("ok", "a", ""), Verdict("stop", "b", ""), Verdict("warn", "c", "")]
    assert worst(verdicts).check == "b"
    assert Limits(window=2).window == 2
