"""Values that are handed in by mistake: for the tests of all entry points."""

import math

import numpy as np
import torch


class Unshowable:
    """An object whose ``repr`` and ``==`` raise."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no eq")

    def __bool__(self):
        raise RuntimeError("no bool")

    __hash__ = None


ITSELF: list = []
ITSELF.append(ITSELF)
ITSELF_AS_DICT: dict = {}
ITSELF_AS_DICT["role"] = ITSELF_AS_DICT

NUMBERS = [-1, 0, 1, 2, 7, 10**30, -(10**30), 2**63, 10**400, 10**5000, 0.5, -0.0, 1e-46, 1e308,
           math.nan, math.inf, -math.inf, 1j]  # fmt: skip
STRINGS = ["", " ", "a", "0", "nan", "\0", "a\0b", "\ud800", "a\udfffb", "é🌍", "../..",
           "{{ 1/0 }}", "{% for", "a" * 5000, b"bytes"]  # fmt: skip
CONTAINERS = [[], {}, (), set(), [[]], [None], [[[[1]]]], {"a": 1}, {1: 2}, {"a": {"b": []}}, [1],
              [10**30], [-1], [math.nan], ["\ud800"], [True], range(3), ITSELF, ITSELF_AS_DICT,
              {None: math.nan}, ["a", 1]]  # fmt: skip
ARRAYS = [np.int64(3), np.float32(0.5), np.float64(0.5), np.bool_(True), np.str_("a"),
          np.array(1), np.arange(3), np.zeros(0), np.ones((2, 2)), np.array([math.nan]),
          torch.tensor(1), torch.tensor(0.5), torch.tensor(True), torch.arange(3), torch.zeros(0),
          torch.ones(2, 2)]  # fmt: skip
OBJECTS = [None, True, False, object(), Unshowable(), len, print, type, Ellipsis, NotImplemented,
           ValueError("x"), lambda: 1, lambda *a: a, torch.nn.Linear(1, 1)]  # fmt: skip

HOSTILE = [*NUMBERS, *STRINGS, *CONTAINERS, *ARRAYS, *OBJECTS]
# what a file in JSON can hold of them
HOSTILE_JSON = [*(n for n in NUMBERS if isinstance(n, int) and abs(n) < 10**500), 0.5, math.nan,
                *(s for s in STRINGS if isinstance(s, str)), None, True, [], {}, [[]], [None],
                {"a": 1}, [10**30], [-1], [0.5], ["a"]]  # fmt: skip


def names(error: Exception, *fields: str) -> bool:
    """Is this a refusal, and does it say of what?"""
    kinds = (ValueError, TypeError, FileNotFoundError)
    return isinstance(error, kinds) and any(field in str(error) for field in fields)
