"""The OpenAI-compatible server: what of vLLM's HTTP interface a text model has."""
