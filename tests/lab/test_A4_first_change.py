"""Notebook A4: each place in its bank is in vLLM 0.32.0, and near places are told why not."""

import pytest
import vllm_names

from minivllm.course.asking.answers import NotYet
from minivllm.course.chA4.exercises import places
from minivllm.exercises import chA4

ALL = [entry for entries in places().values() for entry in entries]


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry["symbols"][0])
def test_a_place_is_in_vllm(entry):
    version = vllm_names.NEW
    assert vllm_names.has_path(version, entry["file"])
    in_file = vllm_names.names_in(vllm_names.FILES[version][entry["file"]])
    listed = [name for name in entry["symbols"] if "__" not in name]  # the list has no dunders
    assert set(listed) <= in_file
    assert {name.partition(".")[0] for name in entry["symbols"]} <= in_file
    near = {name for name in entry["near"] if "__" not in name}
    assert near <= vllm_names.known(version)


@pytest.mark.parametrize("kind", [chA4.way_in, chA4.plan, chA4.way_out])
@pytest.mark.parametrize("seed", range(5))
def test_a_whole_name_its_last_part_and_a_part_of_the_path_are_right(kind, seed):
    exercise = kind(seed=seed)
    right = exercise.solve()
    assert exercise.check(right)
    short = {name: (file.removeprefix("vllm/v1/"), symbol.rpartition(".")[2] + "()")
             for name, (file, symbol) in right.items()}  # fmt: skip
    assert exercise.check(short) == exercise.check(right)
    for name, entry in exercise.chosen.items():
        for near, reason in entry["near"].items():
            with pytest.raises(NotYet, match=rf"{name}: not {near}: ") as told:
                exercise.check({**right, name: (entry["file"], near)})
            assert reason in str(told.value)
        with pytest.raises(NotYet, match="the file is right"):
            exercise.check({**right, name: (entry["file"], "Nothing.known")})
        with pytest.raises(NotYet, match="is right; it is in another file"):
            exercise.check({**right, name: ("vllm/other.py", entry["symbols"][0])})


@pytest.mark.parametrize("answer", [{}, [], 3, {"a": 1}, {"a": ("x",)}, {"a": ("", "")}])
def test_what_is_no_place(answer):
    exercise = chA4.plan(seed=0)
    full = {**exercise.solve(), **answer} if isinstance(answer, dict) and answer else answer
    with pytest.raises(NotYet):
        exercise.check(full)
