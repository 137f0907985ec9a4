"""Tool calls: the system prompt lists functions, the answer calls the right one."""

import random
from dataclasses import dataclass
from string import ascii_uppercase

from minivllm.embedded.data.chat_format import tool_call, tool_response, tools_section
from minivllm.embedded.data.facts import vary
from minivllm.embedded.data.lists import WORDS, load_lists
from minivllm.embedded.data.people import Population, invented_word
from minivllm.embedded.data.phrases import plain_system
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.smalltalk import UNKNOWN_ANSWER, exchanges


@dataclass(frozen=True)
class Tool:
    """A function: its schema, and requests whose ``{slots}`` become its arguments."""

    name: str
    description: str
    parameters: dict[str, dict]
    required: list[str]
    requests: list[str]

    def schema(self, rng: random.Random) -> dict:
        """The OpenAI form of the function, with or without the parts that may be missing."""
        parameters = {
            name: dict(value) if rng.random() < 0.7 else {"type": value["type"]}
            for name, value in self.parameters.items()
        }
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": list(self.required),
            },
        }
        return {"type": "function", "function": function}


_LISTS = load_lists(__package__, "tools")
TOOLS = [Tool(**described) for described in _LISTS.tools]


def _value(rng: random.Random, slot: str, held_out: bool) -> str | int:
    """A value for a slot of requests."""
    if slot in ("location", "city"):
        listed = WORDS.held_out_cities if held_out else WORDS.cities
        parts = [invented_word(rng).capitalize() for _ in range(rng.choice((1, 1, 2)))]
        invented = " ".join(parts)
        place = invented if rng.random() < 0.4 else rng.choice(listed)
        if slot == "location" and rng.random() < 0.2:
            place += ", " + rng.choice(WORDS.regions)
        return place
    if slot == "unit":
        return rng.choice(("celsius", "fahrenheit"))
    if slot == "symbol":
        return "".join(rng.choice(ascii_uppercase) for _ in range(rng.randint(2, 5)))
    if slot in ("query", "subject"):
        return " ".join(invented_word(rng, 0.01) for _ in range(rng.randint(1, 3)))
    if slot == "to" and rng.random() < 0.5:
        population = Population(rng, 0.5, held_out)
        return population.email(population.name())
    if slot in ("from", "to"):
        return rng.choice(_LISTS.currencies)
    return rng.randint(1, rng.choice((9, 99, 999, 9999)))


def request(rng: random.Random, tool: Tool, held_out: bool = False) -> tuple[str, dict]:
    """A random request for the tool and the arguments it asks for, in the schema's order."""
    template = rng.choice(tool.requests)
    slots = [slot for slot in tool.parameters if f"{{{slot}}}" in template]
    arguments = {slot: _value(rng, slot, held_out) for slot in slots}
    if "from" in arguments:
        arguments["from"], arguments["to"] = rng.sample(_LISTS.currencies, 2)
    if tool.name == "send_email":
        population = Population(rng, 0.5, held_out)
        arguments["to"] = population.email(population.name())
    return template.format(**arguments), arguments


def offered_tools(rng: random.Random, tool: Tool) -> list[dict]:
    """The schemas in the system prompt: this tool and up to three others, in random order."""
    others = rng.sample([t for t in TOOLS if t is not tool], rng.choice((0, 0, 1, 1, 2, 3)))
    offered = [tool, *others]
    rng.shuffle(offered)
    return [each.schema(rng) for each in offered]


def _weather_answer(rng: random.Random, sample: Sample, arguments: dict) -> None:
    """The tool's answer and what the model says about it."""
    place = arguments["location"]
    unit = arguments.get("unit", "celsius")
    result: dict[str, object] = {
        "location": place,
        "temperature": rng.randint(-20, 40) if unit == "celsius" else rng.randint(0, 100),
        "unit": unit,
    }
    if rng.random() < 0.3:
        del result["location"]
    if rng.random() < 0.5:
        result["condition"] = rng.choice(("sunny", "cloudy", "rainy", "windy", "snowy", "foggy"))
    read = sample.turn("user", tool_response(result))
    sky = f" and {result['condition']}" if "condition" in result else ""
    said = sample.answer(f"It is {result['temperature']} degrees {unit}{sky} in {place}.")
    sample.copied_from("question", f" {result['temperature']}", said, read)


def tool_chat(rng: random.Random, held_out: bool = False) -> Sample:
    """One or two requests that need a tool; sometimes also one that does not."""
    sample = Sample("tool")
    tool = TOOLS[0] if rng.random() < 0.45 else rng.choice(TOOLS[1:])
    system = plain_system(rng) + "\n\n" if rng.random() < 0.5 else ""
    sample.turn("system", system + tools_section(offered_tools(rng, tool)))
    for number in range(rng.randint(1, 3)):
        if number and rng.random() < 0.25:
            if rng.random() < 0.3:
                sample.turn("user", f"Who is {invented_word(rng).capitalize()}?")
                sample.answer(UNKNOWN_ANSWER)
            else:
                requests, answer = rng.choice(exchanges())
                sample.turn("user", rng.choice(requests[:2]))
                sample.answer(answer)
            continue
        text, arguments = request(rng, tool, held_out)
        wanted = [str(value) for value in arguments.values()]
        varied = vary(rng, text)
        asked = sample.turn("user", varied if all(v in varied for v in wanted) else text)
        said = sample.answer(tool_call(tool.name, arguments))
        for value in wanted:
            sample.copied_from("question", value, said, asked)
        if tool.name == "get_weather" and rng.random() < 0.4:
            _weather_answer(rng, sample, arguments)
    return sample
