"""Content of figures, read from a Trace before anything is drawn."""
