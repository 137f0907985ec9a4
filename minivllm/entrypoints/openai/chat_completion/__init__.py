"""Endpoint /v1/chat/completions."""
