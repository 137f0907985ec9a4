"""Questions about scenes, with the one right answer to each, and the forms of a prompt."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from minivllm.embedded.data.scenes import COLOURS, PLACES, SHAPES, WORDS, Scene, Thing

IMAGE = "<image>"
FORMS: dict[str, list[str]] = WORDS["forms"]
NUMBERS = ("first", "second")
_PLURALS = dict(zip(SHAPES, WORDS["plurals"], strict=True))


@dataclass(frozen=True)
class Question:
    """A question, its right answer, and the kind of knowledge that it asks for."""

    kind: str
    text: str
    answer: str


def with_article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def named(thing: Thing) -> str:
    return with_article(f"{thing.colour} {thing.shape}")


def at_place(place: int) -> str:
    return f"{'in' if PLACES[place] == 'middle' else 'at'} the {PLACES[place]}"


def description(scene: Scene) -> str:
    """All things in reading order, each with its place."""
    if not scene.things:
        return f"a plain {scene.ground} picture"
    return ", ".join(f"{named(thing)} {at_place(thing.place)}" for thing in scene.things)


def image_colour(scene: Scene) -> str:
    """The colours of the things, in reading order; of a plain picture its own."""
    colours = dict.fromkeys(thing.colour for thing in scene.things)
    return ", ".join(colours) if colours else str(scene.ground)


def _fill(
    rng: random.Random, templates: list[str], shape: str = "", colour: str = "", **words
) -> str:
    text = rng.choice(templates)
    marks = {"{s}": shape, "{ss}": _PLURALS.get(shape, ""), "{c}": colour}
    if colour:
        marks["{a c}"] = with_article(colour)
    marks |= {f"{{{name}}}": word for name, word in words.items()}
    for mark, word in marks.items():
        text = text.replace(mark, word)
    return text


def _yes(true: bool) -> str:
    return "Yes." if true else "No."


def _drawn_looks(rng: random.Random, scene: Scene) -> tuple[str, str]:
    """A shape and a colour: of a thing, of two things mixed, or of none."""
    chance = rng.random()
    if not scene.things or chance < 0.25:
        return rng.choice(SHAPES), rng.choice(COLOURS)
    one, other = rng.choice(scene.things), rng.choice(scene.things)
    if chance < 0.45:
        return one.shape, other.colour
    if chance < 0.6:
        return one.shape, rng.choice(COLOURS)
    return one.shape, one.colour


def _unique(scene: Scene, *looks: str) -> list[Thing]:
    """The things that no other thing equals in these of their looks."""
    of = attrgetter(*looks)
    counts = Counter(of(thing) for thing in scene.things)
    return [thing for thing in scene.things if counts[of(thing)] == 1]


def _ask_colour(rng: random.Random, scene: Scene) -> Question | None:
    if len(scene.things) == 1 and rng.random() < 0.6:
        (thing,) = scene.things
        asked = _fill(rng, WORDS["questions"]["only colour"], shape=thing.shape)
        return Question("colour", asked, thing.colour)
    unique = _unique(scene, "shape")
    if not unique:
        return None
    thing = rng.choice(unique)
    asked = _fill(rng, WORDS["questions"]["colour"], shape=thing.shape)
    return Question("colour", asked, thing.colour)


def _ask_shape(rng: random.Random, scene: Scene) -> Question | None:
    if len(scene.things) == 1 and rng.random() < 0.6:
        asked = _fill(rng, WORDS["questions"]["only shape"])
        return Question("shape", asked, scene.things[0].shape)
    unique = _unique(scene, "colour")
    if not unique:
        return None
    thing = rng.choice(unique)
    asked = _fill(rng, WORDS["questions"]["shape"], colour=thing.colour)
    return Question("shape", asked, thing.shape)


def _ask_count(rng: random.Random, scene: Scene) -> Question:
    shape, colour = _drawn_looks(rng, scene)
    kind = rng.choice(("count", "count", "count colour", "count all", "count all"))
    number = {
        "count": sum(thing.shape == shape for thing in scene.things),
        "count colour": sum(thing.colour == colour for thing in scene.things),
        "count all": len(scene.things),
    }[kind]
    asked = _fill(rng, WORDS["questions"][kind], shape=shape, colour=colour)
    return Question("count", asked, str(number))


def _ask_exists(rng: random.Random, scene: Scene) -> Question:
    shape, colour = _drawn_looks(rng, scene)
    kind = rng.choice(("exists", "exists", "exists shape", "exists colour"))
    looks = {(thing.shape, thing.colour) for thing in scene.things}
    if kind == "exists shape":
        true = shape in {look[0] for look in looks}
    elif kind == "exists colour":
        true = colour in {look[1] for look in looks}
    else:
        true = (shape, colour) in looks
    return Question(
        "exists", _fill(rng, WORDS["questions"][kind], shape, colour=colour), _yes(true)
    )


def _ask_where(rng: random.Random, scene: Scene) -> Question | None:
    unique = _unique(scene, "shape", "colour")
    if not unique:
        return None
    thing = rng.choice(unique)
    alone = thing in _unique(scene, "shape")
    kind = "where shape" if alone and rng.random() < 0.3 else "where"
    asked = _fill(rng, WORDS["questions"][kind], shape=thing.shape, colour=thing.colour)
    return Question("where", asked, PLACES[thing.place])


def _ask_what_at(rng: random.Random, scene: Scene) -> Question:
    by_place = {thing.place: named(thing) for thing in scene.things}
    places = sorted(by_place)
    place = rng.choice(places) if places and rng.random() < 0.7 else rng.randrange(9)
    asked = _fill(rng, WORDS["questions"]["what at"], p=PLACES[place])
    return Question("what at", asked, by_place.get(place, "nothing"))


def _ask_ground(rng: random.Random, scene: Scene) -> Question | None:
    if scene.ground is None:
        return None
    return Question("ground", _fill(rng, WORDS["questions"]["ground"]), scene.ground)


def _ask_description(rng: random.Random, scene: Scene) -> Question:
    return Question("describe", _fill(rng, WORDS["questions"]["describe"]), description(scene))


def _ask_image_colour(rng: random.Random, scene: Scene) -> Question:
    asked = _fill(rng, WORDS["questions"]["image colour"])
    return Question("image colour", asked, image_colour(scene))


Ask = Callable[[random.Random, Scene], Question | None]
ASKED: dict[Ask, float] = {
    _ask_colour: 2, _ask_shape: 1.5, _ask_count: 2, _ask_exists: 1.5, _ask_where: 1.2,
    _ask_what_at: 1.5, _ask_ground: 0.4, _ask_description: 1.2, _ask_image_colour: 0.5,
}  # fmt: skip
"""The kinds of questions, and how often each is asked."""


PAIR_KINDS = {"which": 3, "describe one": 1, "describe both": 1, "count in one": 1,
              "colour in one": 1}  # fmt: skip
"""The same of questions about two pictures."""


def question(rng: random.Random, scene: Scene) -> Question:
    """A random question about a picture."""
    while True:
        ask = rng.choices(list(ASKED), list(ASKED.values()))[0]
        asked = ask(rng, scene)
        if asked is not None:
            return asked


def pair_question(rng: random.Random, pair: Sequence[Scene]) -> Question:
    """A random question about two pictures."""
    kind = rng.choices(list(PAIR_KINDS), list(PAIR_KINDS.values()))[0]
    number = rng.randrange(2)
    scene = pair[number]
    templates = WORDS["pairs"][kind]
    if kind == "which":
        shape, colour = _drawn_looks(rng, scene)
        has = [any((t.shape, t.colour) == (shape, colour) for t in one.things) for one in pair]
        answer = {(True, False): "the first", (False, True): "the second", (True, True): "both",
                  (False, False): "neither"}[has[0], has[1]]  # fmt: skip
        return Question("which", _fill(rng, templates, shape, colour=colour), answer)
    if kind == "describe both":
        told = zip(NUMBERS, pair, strict=True)
        answer = "; ".join(f"the {name}: {description(one)}" for name, one in told)
        return Question(kind, _fill(rng, templates), answer)
    if kind == "colour in one":
        unique = _unique(scene, "shape")
        if not unique:
            return pair_question(rng, pair)
        thing = rng.choice(unique)
        text = _fill(rng, templates, thing.shape, n=NUMBERS[number])
        return Question(kind, text, thing.colour)
    text = _fill(rng, templates, n=NUMBERS[number])
    answer = description(scene) if kind == "describe one" else str(len(scene.things))
    return Question(kind, text, answer)


def moves_question(rng: random.Random, frames: Sequence[Scene]) -> Question:
    """A question about frames of one moving thing."""
    first, last = frames[0].things[0], frames[-1].things[0]
    answer = f"{named(first)} moves from the {PLACES[first.place]} to the {PLACES[last.place]}"
    return Question("moves", _fill(rng, WORDS["frames"]["moves"]), answer)


def prompt(form: str, pictures: int, asked: str) -> str:
    """The prompt in one of the `FORMS`, with the pictures' placeholders."""
    text, _ = FORMS[form]
    return text.replace("{i}", "\n".join([IMAGE] * pictures)).replace("{q}", asked)
