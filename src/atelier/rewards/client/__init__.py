"""Asking reward services: a scorer whose scores are made elsewhere."""
