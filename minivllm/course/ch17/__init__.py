"""Notebook 17: LoRA: one base model, many users."""
