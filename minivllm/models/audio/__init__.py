"""Sound towers: from the frequencies of each moment to a vector for some of them."""
