"""Prefect tasks: thin wrappers that call the library."""
