"""The KV cache before paging: a contiguous slab for each request, which notebook 02 measures."""
