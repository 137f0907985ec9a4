"""Exercises of the notebooks: checks that say what is wrong, and solutions kept right by tests.

``chNN`` belongs to notebook NN. A name of it makes an exercise from a seed:
``ch05.puzzle(seed=0)``. ``labs`` are pieces of the engine to write, ``quiz["05"]`` asks five
questions about a notebook. ``ask(exercise, answer)`` is the one form for all three: it shows what
is asked, prints what is right or wrong with the answer, and folds a hint and a solution.
"""

import minivllm.lab  # noqa: F401  it sets the language
