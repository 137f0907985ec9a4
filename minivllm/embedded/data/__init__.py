"""The text that the embedded model is trained on: generated, seeded, and free of torch."""
