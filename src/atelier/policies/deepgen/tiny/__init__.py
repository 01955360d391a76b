"""The embedded DeepGen model: its parts before pre-training."""
