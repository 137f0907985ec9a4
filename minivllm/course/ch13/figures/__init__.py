"""Figures of notebook 13."""
