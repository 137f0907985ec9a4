"""Outputs of a load, and the keys under which vLLM saves what they come to."""

from minivllm.lab.bench.serving.metrics import RequestFuncOutput

# Three answers: five tokens in three events, two in two, one.
ANSWERS = [
    RequestFuncOutput(0.0, True, "", 10, 5, 0.2, [0.1, 0.3], 0.6, "abc"),
    RequestFuncOutput(0.6, True, "", 20, 2, 0.4, [0.1], 0.5, "de"),
    RequestFuncOutput(0.1, True, "", 30, 1, 0.3, [], 0.3, "f"),
]
FAILED = RequestFuncOutput(0.0, False, "status 503: busy")

# What `vllm bench serve --save-result` of 0.32 writes for a text model, but for `rtfx` (of audio).
VLLM_KEYS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate
burstiness max_concurrency duration completed failed total_input_tokens total_output_tokens
request_throughput request_goodput output_throughput total_token_throughput
max_output_tokens_per_s max_concurrent_requests""".split()
VLLM_DETAILS = """input_lens output_lens ttfts itls latencies start_times queue_times
generated_texts errors""".split()
