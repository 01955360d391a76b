"""How much memory a rank needs on its device, estimated without loading the model."""
