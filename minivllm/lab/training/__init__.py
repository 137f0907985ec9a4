"""The training of the embedded model, ``train``, and of what is made from it.

``distill`` makes drafts, ``lora`` adapters, ``embedder`` an embedder and ``classifier`` a head;
``evaluate`` measures what a model can do. All are commands:
``python -m minivllm.lab.training.train``.
"""
