"""Janus-Pro (transformers' JanusForConditionalGeneration) as a token policy."""
