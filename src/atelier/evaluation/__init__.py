"""Evaluation suites: what held-out images are worth before, during and after training."""
