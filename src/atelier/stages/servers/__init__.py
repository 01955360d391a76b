"""The servers of a run: brought up before training, watched, restarted, drained, gone after it."""
