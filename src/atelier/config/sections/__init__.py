"""Every key that a run can set, a concern a file; schema.py puts them together."""
