"""Structured outputs: grammars that mask the tokens which cannot come next.

``regex`` and ``dfa`` turn a pattern into an automaton over bytes, ``vocabulary`` says what bytes
each token is, ``backend_fsm`` puts the two together: which tokens may come in which state.
``backend_guidance`` does the same for JSON schemas and grammars with the llguidance library.
``manager`` compiles grammars and fills the bitmask. (vLLM: vllm/v1/structured_output/)
"""
