"""What is saved as a file of its own: the HTML page, and a trace for Perfetto."""
