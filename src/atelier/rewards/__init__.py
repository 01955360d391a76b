"""Rewards: what an image is worth. `build` makes the set that a configuration asks for."""

from atelier.rewards.base import Missing, ScoreBatch, Scorer, Scores
from atelier.rewards.images import pil_images
from atelier.rewards.registry import build
from atelier.rewards.reward_set import Reward, RewardSet, Submission
from atelier.rewards.score_table import ScoreTable
from atelier.rewards.scorers.custom import Golden, reward

__all__ = [
    "Golden",
    "Missing",
    "Reward",
    "RewardSet",
    "ScoreBatch",
    "ScoreTable",
    "Scorer",
    "Scores",
    "Submission",
    "build",
    "pil_images",
    "reward",
]
