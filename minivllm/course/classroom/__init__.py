"""Classroom: a repository for a reader's own engine, and the grading of notebooks."""
