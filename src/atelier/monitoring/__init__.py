"""Monitoring: plain functions over metrics and evaluations that say ok, warn or stop, and why."""

from atelier.monitoring.evaluation_checks import check_evaluations
from atelier.monitoring.training_checks import check_training
from atelier.monitoring.verdict import Limits, Verdict, worst

__all__ = ["Limits", "Verdict", "check_evaluations", "check_training", "worst"]
