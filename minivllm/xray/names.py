"""Names of requests in an X-ray: an id that a client uses again gets a number behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def told_apart(
    rows: Iterable[Sequence], requests: dict, names: dict[str, str], known: Collection[str]
) -> tuple[list[Sequence], dict]:
    """Rows and requests with other names for ids that were used before: "a", then "a#2".

    Args:
        rows: of a line of the file.
        requests: what those that are new in it ask for, by id.
        names: what each id stands for now; is changed.
        known: names that earlier requests have.
    """
    told: list[Sequence] = []
    asked: dict[str, dict] = {}
    for kind, *values in rows:
        if kind == "RequestAdded":
            again = values[0]
            name, number = again, 2
            if names.get(again, again) != again:  # behind the number that it had last
                number = int(names[again].rpartition("#")[2]) + 1
                name = f"{again}#{number}"
            while name in known or name in asked:
                name, number = f"{again}#{number}", number + 1
            asked[name] = requests.get(again, {})
            names[again] = name
        if values and isinstance(values[0], str):
            values[0] = names.get(values[0], values[0])
        told.append((kind, *values))
    return told, asked
