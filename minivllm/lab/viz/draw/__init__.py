"""SVG, colours, words and matplotlib's paper: what figures are drawn with."""
