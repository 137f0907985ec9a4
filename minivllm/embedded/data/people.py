"""Random people: one dictionary of cells per person, from word lists and from invented words.

Copying a cell must not depend on having met its words, so a good part of all names, jobs,
countries and streets are made of random syllables, accents and letters included.
"""

import random
import unicodedata
from string import ascii_lowercase

from minivllm.embedded.data.lists import WORDS, load_lists

COLUMNS = ("ID", "Name", "Age", "Occupation", "Country", "Email", "Phone Number", "Address")

_LISTS = load_lists(__package__, "people")
# many syllables begin or end with their vowel
_ONSETS = _LISTS.onsets + [""] * 5
_CODAS = _LISTS.codas + [""] * 24
_ALL_LISTS = (WORDS.first_names, WORDS.last_names, WORDS.occupations, WORDS.countries, WORDS.cities,
              WORDS.streets)  # fmt: skip


def invented_word(rng: random.Random, accents: float = 0.05) -> str:
    """A lower-case pseudo-word of one to three syllables."""
    parts = []
    for _ in range(rng.choice((1, 2, 2, 2, 2, 3))):
        nucleus = rng.choice(_LISTS.accented if rng.random() < accents else _LISTS.nuclei)
        parts += [rng.choice(_ONSETS), nucleus, rng.choice(_CODAS)]
    return "".join(parts) if len("".join(parts)) > 1 else "".join(parts) + "o"


def _chunks(rng: random.Random) -> str:
    """Two or three pieces of any listed words, or random letters: unlike any language."""
    if rng.random() < 0.25:
        return "".join(rng.choice(ascii_lowercase) for _ in range(rng.randint(2, 7)))
    pieces = []
    for _ in range(rng.choice((2, 2, 3))):
        word = rng.choice(rng.choice(_ALL_LISTS))
        start = rng.randrange(len(word))
        pieces.append(word[start : start + rng.randint(2, 5)])
    return "".join(pieces).replace(" ", "").lower() or "a"


def _title(word: str) -> str:
    return word[:1].upper() + word[1:]


def _spliced(rng: random.Random, listed: list[str]) -> str:
    """The start of one listed word with the end of another: new, but it looks natural."""
    start, end = rng.choice(listed), rng.choice(listed)
    return start[: rng.randint(1, len(start))] + end[rng.randint(1, len(end)) :].lower()


class Population:
    """Draws people; one population per table, so that its people can resemble each other.

    `invented` is the share of invented words, `held_out` says to take listed words from the
    lists that training never uses. In a *clannish* population first and last names are drawn
    from a few, so that only the full name tells two people apart; an *everyday* one is not.
    """

    def __init__(
        self,
        rng: random.Random,
        invented: float,
        held_out: bool = False,
        everyday: bool = False,
    ) -> None:
        self.rng = rng
        self.invented = invented
        self.first_names = WORDS.held_out_first_names if held_out else WORDS.first_names
        self.last_names = WORDS.held_out_last_names if held_out else WORDS.last_names
        self.occupations = WORDS.held_out_occupations if held_out else WORDS.occupations
        self.countries = WORDS.held_out_countries if held_out else WORDS.countries
        self.cities = WORDS.held_out_cities if held_out else WORDS.cities
        clannish = rng.random() + everyday
        if clannish < 0.45:
            size = rng.randint(2, 8)
            self.last_names = [self._last_name() for _ in range(size)]
        if 0.25 < clannish < 0.6:
            size = rng.randint(2, 8)
            self.first_names = [self._first_name() for _ in range(size)]
        self.fixed_names = clannish < 0.6
        self.country_code = rng.choice(("", "", "+1-", "+1 ", "+44 ", "+49 ", "+33 ", "+91-", "+"))
        self.phone_style = rng.choice(_LISTS.phone_styles)
        self.domain = self._domain() if rng.random() < 0.5 else None
        self.email_style = rng.randrange(8) if rng.random() < 0.6 else None

    def _pick(self, listed: list[str], share: float | None = None) -> str:
        if self.rng.random() < (self.invented if share is None else share):
            kind = self.rng.random()
            if kind < 0.35:
                return _title(" ".join(_spliced(self.rng, listed).split()))
            if kind < 0.7:
                word = _chunks(self.rng)
                return f"{word[0].upper()}'{_title(word[1:])}" if kind < 0.38 else _title(word)
            return _title(invented_word(self.rng))
        return self.rng.choice(listed)

    def _first_name(self) -> str:
        return self._pick(self.first_names)

    def _last_name(self) -> str:
        name = self._pick(self.last_names)
        chance = self.rng.random()
        if chance < 0.03:
            return f"{name}-{self._pick(self.last_names)}"
        if chance < 0.06:
            return self.rng.choice(("van ", "de ", "von ", "O'", "Mc", "El ", "da ")) + name
        return name

    def name(self) -> str:
        """A full name; sometimes with a middle name or initial, rarely a single word."""
        draw = self.rng.random
        first = self.rng.choice(self.first_names) if self.fixed_names else self._first_name()
        last = self.rng.choice(self.last_names) if self.fixed_names else self._last_name()
        chance = draw()
        if chance < 0.04:
            return f"{first} {self.rng.choice('ABCDEFGHIJKLMNOPRSTVW')}. {last}"
        if chance < 0.07:
            return f"{first} {self._pick(self.first_names)} {last}"
        if chance < 0.08:
            return f"{self.rng.choice('ABCDEFGHIJKLMNOPRSTVW')}. {last}"
        if chance < 0.10:
            return f"{first}-{self._pick(self.first_names)} {last}"
        if chance < 0.12:
            return first
        if chance < 0.14:
            return f"{self.rng.choice(_LISTS.titles)} {first} {last}"
        if chance < 0.16:
            return f"{first} {last}-{self._last_name()}"
        if chance < 0.19:
            return f"{first} {last} {self._pick(self.last_names)}"
        return f"{first} {last}"

    def _domain(self) -> str:
        ending = self.rng.choice(WORDS.domain_endings)
        listed = self.rng.choice(WORDS.domains)
        if self.rng.random() < 0.5:
            return "example.com"
        return f"{invented_word(self.rng, 0) if self.rng.random() < 0.5 else listed}.{ending}"

    def email(self, name: str) -> str:
        """An address made from the name, without accents, or rarely from an invented word."""
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
        parts = ["".join(c for c in part if c.isalnum() or c == "-") for part in plain.split()]
        parts = [part for part in parts if part] or [invented_word(self.rng, 0)]
        style = self.email_style if self.email_style is not None else self.rng.randrange(8)
        user = {
            0: ".".join(parts),
            1: ".".join(parts),
            2: ".".join((parts[0], parts[-1])),
            3: parts[0][0] + parts[-1],
            4: "_".join(parts),
            5: f"{parts[0]}{self.rng.randint(1, 99)}",
            6: parts[0],
            7: f"{parts[0]}.{parts[-1][0]}",
        }[style]
        if self.rng.random() < 0.03:
            user = invented_word(self.rng, 0)
        return f"{user}@{self.domain or self._domain()}"

    def phone(self) -> str:
        """Digits in the style of this population."""
        digits = self.country_code * (not self.phone_style.startswith("#-")) + self.phone_style
        return "".join(str(self.rng.randint(0, 9)) if c == "#" else c for c in digits)

    def address(self) -> str:
        """`123 Elm St, Springfield, IL`, with some parts missing now and then."""
        rng = self.rng
        number = rng.randint(1, rng.choice((99, 999, 999, 9999)))
        city = self.city()
        region = rng.choice(WORDS.regions)
        street = f"{self._pick(WORDS.streets, self.invented / 2)} {rng.choice(WORDS.street_kinds)}"
        chance = rng.random()
        if chance < 0.72:
            return f"{number} {street}, {city}, {region}"
        if chance < 0.86:
            return f"{number} {street}, {city}"
        if chance < 0.93:
            return f"{number} {street}"
        return f"{number} {street}, {city}, {region} {rng.randint(10000, 99999)}"

    def _place(self, listed: list[str], invented: float) -> str:
        """A country or a city; an invented one may have several words."""
        place = self._pick(listed, invented)
        if self.rng.random() < 0.06:
            join = self.rng.choice((" ", " ", " ", " and ", " de ", " of ", "-"))
            place += join + self._pick(listed, 0.8)
        return place

    def city(self) -> str:
        return self._place(self.cities, self.invented / 2)

    def _occupation(self) -> str:
        if self.rng.random() < self.invented / 2:
            job = _title(invented_word(self.rng, 0.02))
            return job if self.rng.random() < 0.5 else f"{job} {self.rng.choice(self.occupations)}"
        job = self.rng.choice(self.occupations)
        if self.rng.random() < 0.08:
            job = f"{self.rng.choice(_LISTS.ranks)} {job}"
        return job

    def person(self, row: int) -> dict[str, str]:
        """All eight cells of one person; `row` is the default ID."""
        name = self.name()
        return {
            "ID": str(row),
            "Name": name,
            "Age": str(
                self.rng.randint(18, 80) if self.rng.random() < 0.9 else self.rng.randint(1, 110)
            ),
            "Occupation": self._occupation(),
            "Country": self._place(self.countries, self.invented / 3),
            "Email": self.email(name),
            "Phone Number": self.phone(),
            "Address": self.address(),
        }

    def people(self, count: int) -> list[dict[str, str]]:
        """People with different names; IDs count up, or are arbitrary different numbers."""
        by_name: dict[str, dict[str, str]] = {}
        attempts = 0
        while len(by_name) < count:
            attempts += 1
            if attempts > 20 * count:
                self.fixed_names = False
            person = self.person(len(by_name) + 1)
            by_name.setdefault(person["Name"].lower(), person)
        people = list(by_name.values())
        chance = self.rng.random()
        if chance < 0.35:
            top = self.rng.choice((99, 999, 9999))
            for person, number in zip(people, self.rng.sample(range(1, top), count), strict=True):
                person["ID"] = str(number)
        elif chance < 0.45:
            first = self.rng.choice((0, 100, 1000, self.rng.randint(2, 500)))
            for row, person in enumerate(people):
                person["ID"] = str(first + row)
        return people
