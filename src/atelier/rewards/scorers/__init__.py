"""What scores: one file a reward, and what several of them share."""
