"""Exercises of the notebooks: checks that say what is wrong, and solutions kept right by tests."""
