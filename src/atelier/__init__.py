"""Atelier: GRPO post-training of image generators as a pipeline to run, resume and trust."""

__version__ = "0.1.0"
