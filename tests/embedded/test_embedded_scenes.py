"""Scenes, and questions about them: drawn the same again, and answered as the picture shows."""

import random
from dataclasses import replace

import numpy as np
import pytest

from minivllm.embedded.data.scene_cases import pair_cases, picture_cases, rates
from minivllm.embedded.data.scene_questions import FORMS, pair_question, prompt, question
from minivllm.embedded.data.scenes import (
    COLOURS,
    PLACES,
    SHAPES,
    WORDS,
    draw_scene,
    moving_scene,
    plain_scene,
)
from minivllm.lab.training.scene_drawing import patch_labels, picture

PLURALS = dict(zip(WORDS["plurals"], SHAPES, strict=True))


def scenes(count):
    rngs = (random.Random(f"test-{number}") for number in range(count))
    return [draw_scene(rng) if number % 9 else plain_scene(rng) for number, rng in enumerate(rngs)]


def without_grain(scene):
    return replace(scene, noise=0.0, jpeg_quality=None, smooth=False)


def words_of(text):
    return text.lower().replace("?", " ").replace("'", " ").split()


def asked_for(text):
    """The shape, the colour and the place that a question names."""
    words = words_of(text)
    shapes = [PLURALS.get(word, word) for word in words if PLURALS.get(word, word) in SHAPES]
    colours = [word for word in words if word in COLOURS]
    places = [place for place in PLACES if f"the {place}?" in text]
    return *((found or [None])[0] for found in (shapes, colours)), places


def test_the_same_seed_draws_the_same_picture():
    for one, other in zip(scenes(30), scenes(30), strict=True):
        assert one == other
        assert picture(one).tobytes() == picture(other).tobytes()
        assert picture(one).size == one.size


def test_a_picture_shows_each_thing_where_the_scene_says():
    for scene in map(without_grain, scenes(150)):
        pixels = np.asarray(picture(scene)).reshape(-1, 3)
        width, height = scene.size
        places = [thing.place for thing in scene.things]
        assert places == sorted(set(places))
        for thing in scene.things:
            column, row = int(thing.x * width), int(thing.y * height)
            assert tuple(pixels[row * width + column]) == thing.rgb
            assert (int(thing.y * 3), int(thing.x * 3)) == divmod(thing.place, 3)
        corners = [0, width - 1, width * (height - 1), width * height - 1]
        assert {tuple(pixels[corner]) for corner in corners} == {scene.ground_rgb}


def test_things_neither_touch_nor_leave_the_picture():
    for scene in map(without_grain, scenes(150)):
        boxes = []
        for thing in scene.things:
            across, down = (thing.radius * min(scene.size) / side for side in scene.size)
            boxes.append((thing.x - across, thing.y - down, thing.x + across, thing.y + down))
        for index, (left, top, right, bottom) in enumerate(boxes):
            assert min(left, top) >= 0
            assert max(right, bottom) <= 1
            for other in boxes[:index]:
                apart = (left >= other[2], right <= other[0], top >= other[3], bottom <= other[1])
                assert any(apart)


def test_patches_are_labelled_by_what_covers_them():
    for scene in map(without_grain, scenes(60)):
        scene = replace(scene, size=(64, 64))
        pixels = np.asarray(picture(scene)).reshape(8, 8, 8, 8, 3).swapaxes(1, 2)
        tiles = pixels.reshape(64, 64, 3)
        labels = patch_labels(scene).T
        by_rgb = {thing.rgb: thing for thing in scene.things}
        if len(by_rgb) < len(scene.things):
            continue
        for tile, (shape, colour, place) in zip(tiles, labels, strict=True):
            shares = {rgb: (tile == rgb).all(1).mean() for rgb in by_rgb}
            most = max(shares, key=shares.get, default=None)
            if most is None or shares[most] < 0.25:
                assert shape == colour == place == 0
            else:
                assert SHAPES[shape - 1] == by_rgb[most].shape
                assert COLOURS[colour - 1] == by_rgb[most].colour
                assert place - 1 == by_rgb[most].place


def right_answer(scene, kind, text):
    """The answer, found from the words of the question alone."""
    shape, colour, places = asked_for(text)
    fitting = [
        thing
        for thing in scene.things
        if shape in (None, thing.shape) and colour in (None, thing.colour)
    ]
    if kind in ("colour", "shape", "where"):
        (thing,) = fitting
        found = {"colour": thing.colour, "shape": thing.shape, "where": PLACES[thing.place]}
        return found[kind]
    if kind == "count":
        return str(len(fitting))
    if kind == "exists":
        return "Yes." if fitting else "No."
    if kind == "ground":
        return scene.ground
    if kind == "what at":
        (place,) = places
        there = [thing for thing in scene.things if PLACES[thing.place] == place]
        article = "an" if there and there[0].colour == "orange" else "a"
        return f"{article} {there[0].colour} {there[0].shape}" if there else "nothing"
    if kind == "image colour":
        return ", ".join(dict.fromkeys(t.colour for t in scene.things)) or scene.ground
    assert kind == "describe"
    return None


def test_every_question_has_the_answer_that_its_words_ask_for():
    kinds = set()
    for number, scene in enumerate(scenes(300)):
        rng = random.Random(f"ask-{number}")
        for _ in range(6):
            asked = question(rng, scene)
            kinds.add(asked.kind)
            expected = right_answer(scene, asked.kind, asked.text)
            if expected is not None:
                assert asked.answer == expected, asked
            else:
                told = [asked.answer.find(f"{t.colour} {t.shape}") for t in scene.things]
                assert -1 not in told
                assert asked.answer.count(",") == max(0, len(scene.things) - 1)
            assert "{" not in asked.text
    assert len(kinds) == 9


def test_which_of_two_pictures_has_it():
    names = {(1, 0): "the first", (0, 1): "the second", (1, 1): "both", (0, 0): "neither"}
    seen = set()
    rng = random.Random(3)
    for _ in range(400):
        pair = (draw_scene(rng), draw_scene(rng))
        asked = pair_question(rng, pair)
        if asked.kind == "which":
            shape, colour, _ = asked_for(asked.text)
            has = [any((t.shape, t.colour) == (shape, colour) for t in s.things) for s in pair]
            assert asked.answer == names[tuple(map(int, has))]
            seen.add(asked.answer)
    assert seen == set(names.values())


def test_frames_show_one_thing_that_moves():
    frames = moving_scene(random.Random(1))
    assert [len(frame.things) for frame in frames] == [1, 1, 1, 1]
    xs = [frame.things[0].x for frame in frames]
    assert xs in (sorted(xs), sorted(xs, reverse=True))
    assert {frames[0].things[0].place % 3, frames[-1].things[0].place % 3} == {0, 2}


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_has_a_placeholder_for_each_picture(form):
    text = prompt(form, 2, "What is it?")
    assert text.count("<image>") == 2
    assert text.count("What is it?") == 1
    assert "{" not in text


def test_the_notes_prompts_are_among_the_forms():
    asked = "What is the content of this image?"
    assert prompt("notes", 1, asked) == f"USER: <image>\n{asked}\nASSISTANT:"
    assert asked in WORDS["questions"]["describe"]
    assert "What's the color of this image?" in WORDS["questions"]["image colour"]


def test_cases_are_the_same_in_every_call_and_rates_count_them():
    cases = picture_cases(20) + pair_cases(5)
    assert cases == picture_cases(20) + pair_cases(5)
    right = [case.question.answer for case in cases]
    assert set(rates(cases, right).values()) == {1.0}
    wrong = rates(cases, ["", *right[1:]])
    assert wrong["overall"] == round(1 - 1 / len(cases), 4)
