"""Advantages, losses and KL as pure tensor functions, and the algorithms composed of them."""
