"""Endpoint /v1/models."""
