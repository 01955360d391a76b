"""Qwen-Image: the text encoder that writes, exported beside the frozen rest of its pipeline."""
