"""Endpoints of pooling models: /v1/embeddings, /pooling, /classify, /score and /rerank."""
