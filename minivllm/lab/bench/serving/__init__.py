"""``minivllm bench serve``: a load for any server that speaks OpenAI's protocol."""
