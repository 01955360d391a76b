"""Schema, recipe resolution and digests. Imports no torch: help and validation stay fast."""
