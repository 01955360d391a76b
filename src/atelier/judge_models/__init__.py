"""Judges in this process: vision-language models that transformers loads, and the embedded one."""
