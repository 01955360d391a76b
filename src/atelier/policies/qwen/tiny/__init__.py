"""The embedded Qwen-Image pipelines: their tokenizer, and their parts before pre-training."""
