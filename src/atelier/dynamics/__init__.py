"""Stochastic transitions and windows: one kernel for sampling and for replay."""
