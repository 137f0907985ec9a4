"""Pictures, frames and sound in a prompt: tokens whose embeddings come from elsewhere.

A prompt names an item by placeholder tokens. An encoder turns the item into embeddings, which take
the place of the placeholders' own. All that is known of tokens (chunks, blocks, caching,
preemption) holds for placeholders, too. (vLLM: vllm/multimodal/)
"""
