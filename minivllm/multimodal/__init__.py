"""Pictures, sounds and videos of prompts: where they come from, and their places among the tokens.

(vLLM: vllm/multimodal/)
"""
