"""One figure per file: SVG (or PNG), text and alt, from a trace or a simulator's result."""
