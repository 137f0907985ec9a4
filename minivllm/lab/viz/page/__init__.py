"""Files of a run: the HTML page, and a trace for Perfetto."""
