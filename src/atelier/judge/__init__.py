"""Judges: vision-language models that are asked about images."""
