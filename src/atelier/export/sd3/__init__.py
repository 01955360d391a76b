"""Stable Diffusion 3: pipelines of diffusers."""
