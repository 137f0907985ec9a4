"""Questions to a reader, drawn by a seed: what is asked, how answers are read, what is told."""
