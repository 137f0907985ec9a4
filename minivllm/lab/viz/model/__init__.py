"""What figures show, before anything is drawn: read from a Trace."""
