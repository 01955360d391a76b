"""What may go from a machine's runs to save space, and taking it away (`atelier prune`).

survey.py looks at the runs, removals.py says what would go, applying.py takes it. Nothing of a run
that is being written is touched, and no link is followed.
"""
