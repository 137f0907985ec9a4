"""Some combinations of parameters in the suite, all of them at night.

``@pytest.mark.combinations(2)`` above a test with three parameters or more: the suite has a few of
its items, in which each pair of values occurs; with 1, each value does. The nightly profile has the
whole product, and an item that is asked for by its name runs always.
"""

from collections import Counter, defaultdict
from itertools import combinations

import pytest
from hypothesis import settings


def choose(items, size):
    """Few of a test's items, in which each combination of ``size`` parameters' values occurs.

    The next one has the most combinations that are still missing; of several, the one whose values
    have been used least.
    """
    values = {
        item: [(name, repr(value)) for name, value in sorted(item.callspec.params.items())]
        for item in items
    }
    has = {item: set(combinations(values[item], size)) for item in items}
    missing = set().union(*has.values())
    used, chosen = Counter(), []
    while missing:
        best = max(
            items, key=lambda item: (len(has[item] & missing), -sum(used[v] for v in values[item]))
        )
        chosen.append(best)
        missing -= has[best]
        used.update(values[best])
    return chosen


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config, items):
    if settings.default.max_examples >= 1000:
        return
    products = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("combinations"):
            products[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    left = {item for (_, size), product in products.items() for item in product}
    left -= {item for (_, size), product in products.items() for item in choose(product, size)}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
