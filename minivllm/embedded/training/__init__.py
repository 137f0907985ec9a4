"""The training of the embedded model, ``train``, and of drafts of it, ``distill``.

Both are commands: ``python -m minivllm.embedded.training.train``.
"""
