"""Structured outputs: only tokens after which the text can still become what was asked for.

``regex`` and ``dfa`` turn a pattern into an automaton over bytes, ``vocabulary`` says what bytes
each token is, ``backend_fsm`` puts the two together: which tokens may come in which state.
``backend_guidance`` does the same for JSON schemas and grammars with the llguidance library.
``manager`` is the door. (vLLM: vllm/v1/structured_output/)
"""
