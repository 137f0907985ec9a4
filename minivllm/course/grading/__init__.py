"""Grading of a reader's own code: held to vLLM's recordings, to our scheduler, to an oracle."""
