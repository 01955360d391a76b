"""Atelier: GRPO post-training of image generators as a pipeline that can be run, resumed, compared and trusted."""

__version__ = "0.1.0"
