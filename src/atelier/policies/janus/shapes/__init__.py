"""What one sample of a Janus policy is: an image, or images and answers in turn."""
