"""What policies that denoise have in common, whatever model predicts their velocity."""
