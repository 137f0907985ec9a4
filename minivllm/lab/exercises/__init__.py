"""Exercises of the notebooks: checks that say what is wrong, and solutions kept right by tests.

``chNN`` belongs to notebook NN. A name of it makes an exercise from a seed:
``ch05.puzzle(seed=0)``. To see it is to read the question; ``grade(answer)`` prints what is right
or wrong, ``show_help()`` folds a hint and a solution. ``labs`` are pieces of the engine to write,
``quiz`` asks five questions a notebook.
"""
