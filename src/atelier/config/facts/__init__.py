"""How large a model is, read from its files without loading it, or known by its hub id."""
