"""Sampled questions to judges, kept in the run: whole lines, bounded, without a secret."""

from __future__ import annotations

import base64
import io
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.judge.replies import Reply
from atelier.rewards import ScoreBatch, build
from atelier.rewards.scorers.judges import SharedJudge, Tracing
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.judge_traces import JudgeTraces
from atelier.training.worker import judge_tracing
from tests.support.judge_endpoint import judge_endpoint, said

TOKEN = "sesam-open-you"
PICTURE = Image.linear_gradient("L").resize((640, 320))


def question(prompt: str = "Is it red?") -> Question:
    return Question(prompt, YesNoForm(), [PICTURE], system="Be strict.")


def lines(run: RunDirectory) -> list[dict]:
    return [record for _, record in read_json_lines(run.judge_traces)]


def test_a_question_and_its_answer_are_a_line(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    traces = JudgeTraces(run)
    traces.add("judges.j", question(), Answer({"p_yes": 0.75}, (0.75,), replies=(Reply("Yes"),)))
    traces.add("judges.j", question(), Answer(missing="away\x1b[2J", retryable=True))
    traces.close()
    first, second = lines(run)
    assert (first["judge"], first["prompt"], first["system"]) == (
        *("judges.j", "Is it red?", "Be strict."),
    )
    assert (first["numbers"], first["missing"]) == ({"p_yes": 0.75}, None)
    assert first["replies"] == [{"text": "Yes", "refusal": None}]
    (shown,) = first["images"]
    with Image.open(io.BytesIO(base64.b64decode(shown["png"]))) as small:
        assert (small.format, small.size, shown["size"]) == ("PNG", (96, 48), [640, 320])
    assert second["missing"] == "away [2J"


def test_the_file_is_bounded_and_so_is_every_text(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    traces = JudgeTraces(run, largest_file=30_000)
    for _ in range(30):
        traces.add("judges.j", question("why? " * 5000), Answer(missing="no " * 5000))
    traces.close()
    traces.add("judges.j", question(), Answer(missing="too late"))
    assert 1 < len(lines(run)) < 6
    assert len(lines(run)[0]["prompt"]) == 4003
    assert run.judge_traces.stat().st_size < 45_000


def test_a_resumed_trainer_adds_to_what_is_whole(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for _ in range(2):
        traces = JudgeTraces(run)
        traces.add("judges.j", question(), Answer(missing="away"))
        traces.close()
        with run.judge_traces.open("a") as file:
            file.write('{"half a li')
    assert [one["missing"] for one in lines(run)] == ["away", "away"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    traces = JudgeTraces(run)

    def ask(number: int) -> None:
        for _ in range(10):
            traces.add(f"judges.j{number}", question(), Answer({"p_yes": 1.0}))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    traces.close()
    assert Counter(one["judge"] for one in lines(run)) == {f"judges.j{n}": 10 for n in range(4)}


@pytest.mark.parametrize(("share", "is_main", "expected"), [(1, 1, 2), (0, 1, 0), (1, 0, 0)])
def test_the_main_ranks_rewards_leave_their_questions(
    tmp_path: Path, monkeypatch, share: float, is_main: bool, expected: int
) -> None:
    """A whole reward and its client; the endpoint says the token back."""
    monkeypatch.setenv("JUDGE_TOKEN", TOKEN)

    async def script(call):
        return said(f"Yes {TOKEN}", first_token=[("Yes", -0.1), ("No", -3.0)])

    with judge_endpoint() as endpoint:
        endpoint.acts(script)
        judge = {"placement": "remote", "urls": [endpoint.url], "model": "m"}
        config = RunConfig.model_validate(
            {
                "judges": {"j": judge | {"token_env": "JUDGE_TOKEN"}},
                "rewards": {"yes_no": {"judge": "j"}},
                "tracking": {"judge_traces": share},
            }
        )
        world = World(0 if is_main else 1, 2, torch.device("cpu"))
        run = RunDirectory(tmp_path)
        batch = ScoreBatch([PICTURE] * 2, ["a circle", "a square"], [{}] * 2, [0, 0])
        with (
            judge_tracing(config, run, world) as tracing,
            build(config.rewards, config.judges, tracing=tracing) as rewards,
        ):
            table = rewards.collect([rewards.submit(batch)])
    assert table.valid.all()
    assert len(lines(run)) == expected
    assert not run.judge_traces.exists() or TOKEN not in run.judge_traces.read_text()
    for one in lines(run):
        assert one["judge"] == "judges.j"
        assert "[token]" in one["replies"][0]["text"]
        assert one["numbers"]["p_yes"] > 0.9


def test_a_judge_in_this_process_is_shown_too(monkeypatch) -> None:
    class Local:
        def __init__(self, *_: object) -> None: ...

        def ask(self, questions):
            return [Answer({"p_yes": 1.0}) for _ in questions]

        def close(self) -> None: ...

    from atelier.judge_models import local

    monkeypatch.setattr(local, "LocalJudge", Local)
    told = []
    config = JudgeConfig.model_validate({"placement": "in_process", "model": "m"})
    judge = SharedJudge(config, "judges.j", Tracing(lambda *one: told.append(one), 1.0))
    answers = judge.ask([question()])
    judge.close()
    assert [(key, answer) for key, _, answer in told] == [("judges.j", answers[0])]
