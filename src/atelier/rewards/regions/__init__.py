"""Counting the regions of a picture: one protocol, a file each way to count."""
