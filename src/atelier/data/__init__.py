"""Prompt sets, dataset readers, samplers and the synthetic scene world."""
