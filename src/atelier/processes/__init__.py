"""Starting and stopping the programs a run needs, so that none outlives it."""
