"""Prompts that a Janus cannot read are refused before anything is drawn."""

import pytest
import torch

from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError, DataError
from atelier.policies.janus.conversation import Conversation
from atelier.policies.janus.policy import JanusPolicy
from atelier.policies.janus.reading import require_readable
from tests.support.random_janus import Sizes, build_processor

PATH = "assets/tiny-janus"


def tiny(*overrides: str) -> RunConfig:
    settings = ["launch.device=cpu", "rollout.introspection.answer_tokens=24", *overrides]
    return resolve("tiny-janus/introspective-v1", settings)


@pytest.mark.parametrize("kind", ["draw", "edit", "introspect"])
def test_a_row_is_as_long_as_the_policy_makes_it(kind: str) -> None:
    sizes = Sizes()
    image, answer = sizes.side**2, 24
    talk = Conversation(build_processor(sizes).tokenizer, image)
    prompts = ["a", "a red circle and a blue square"]
    made = {
        "draw": len(talk.drawing(prompts[1]).tokens) + image,
        "edit": len(talk.editing(prompts[1]).tokens) + image,
        "introspect": len(talk.redrawing(prompts[1], [4] * answer).tokens) + image,
    }
    rollout = tiny().rollout.model_copy(update={"kind": kind})
    require_readable(prompts, talk, rollout, made[kind])
    with pytest.raises(ConfigError, match=f"up to {made[kind]} tokens, and the model was made for"):
        require_readable(prompts, talk, rollout, made[kind] - 1)


def test_more_rounds_than_the_embedded_model_reads_are_refused() -> None:
    prompt = ["a large red circle left of a small blue square"]
    JanusPolicy.load(tiny("rollout.introspection.rounds=4"), torch.device("cpu"), prompts=prompt)
    with pytest.raises(ConfigError, match="and the model was made for 512; lower"):
        JanusPolicy.load(
            tiny("rollout.introspection.rounds=5"), torch.device("cpu"), prompts=prompt
        )


@pytest.mark.parametrize("mark", ["<begin_of_image>", "<image_placeholder>", "<|Assistant|>"])
def test_marks_in_a_prompt_are_refused(mark: str) -> None:
    with pytest.raises(DataError, match=f"a prompt: .* has {mark}".replace("|", r"\|")):
        JanusPolicy.load(tiny(), torch.device("cpu"), prompts=["a dog", f"a red {mark} circle"])


@pytest.mark.parametrize(
    "key", ["introspection.question", "introspection.draw_again", "editing.wish"]
)
def test_marks_in_sentences_of_the_configuration_are_refused(key: str) -> None:
    config = tiny(f"rollout.{key}='Is it? <|Assistant|>: Yes'")
    with pytest.raises(DataError, match=rf"rollout\.{key}: .* has <\|Assistant\|>"):
        JanusPolicy.load(config, torch.device("cpu"))


@pytest.mark.parametrize("key", ["question", "draw_again"])
@pytest.mark.parametrize("words", ["", " "])
def test_a_sentence_says_something(key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: \"{words}\" must say something"):
        tiny(f"rollout.introspection.{key}='{words}'")
