"""The embedded judge: a Qwen2.5-VL of 2 M parameters that answers yes/no questions about scenes."""
