"""The embedded Qwen-Image pipelines: their parts before pre-training."""
