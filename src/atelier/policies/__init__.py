"""Policies: one folder a model family, with its tiny builder beside it."""
