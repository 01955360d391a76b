"""The reward service: scores over HTTP, `python -m atelier.rewards.service` (docs/rewards.md)."""
