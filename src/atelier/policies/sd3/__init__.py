"""Stable Diffusion 3: the flow policy, the builder of the embedded model and its pre-training."""
