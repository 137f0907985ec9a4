"""Vision towers: from pixels to a vector for each patch of a picture."""
