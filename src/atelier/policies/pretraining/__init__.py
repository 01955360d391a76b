"""What the pre-trainings of embedded models share: options, compute, snapshots."""
