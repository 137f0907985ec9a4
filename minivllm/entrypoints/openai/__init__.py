"""OpenAI-compatible server: the part of vLLM's HTTP interface that text models have."""
