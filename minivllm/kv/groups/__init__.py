"""KV cache groups: a block table for each kind of layer, and one pool under all of them."""
