"""The suite's part of a product of parameters: few items, and nothing is left out for good."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest
from combinations import choose


class Item(SimpleNamespace):
    __hash__ = object.__hash__


def items_of(**values):
    return [
        Item(callspec=SimpleNamespace(params=dict(zip(values, row, strict=True))))
        for row in product(*values.values())
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_combination_of_so_many_values_occurs(size):
    items = items_of(call=range(8), what="abc", params=[{}, {"n": 2}, {"n": 3}])
    chosen = choose(items, size)
    for names in combinations(("call", "what", "params"), size):
        told = [{repr([i.callspec.params[n] for n in names]) for i in some}
                for some in (items, chosen)]  # fmt: skip
        assert told[0] == told[1]
    assert len(chosen) == {1: 8, 2: 24, 3: 72}[size]


def test_values_occur_equally_often_and_the_choice_is_always_the_same():
    items = items_of(way=range(16), backend="abc", seed=range(4))
    chosen = [item.callspec.params for item in choose(items, 1)]
    assert chosen == [item.callspec.params for item in choose(items, 1)]
    assert sorted(params["way"] for params in chosen) == list(range(16))
    for name, values in (("backend", "abc"), ("seed", range(4))):
        counts = [[params[name] for params in chosen].count(value) for value in values]
        assert max(counts) - min(counts) <= 1
