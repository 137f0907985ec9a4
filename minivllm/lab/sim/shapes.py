"""SHAPES: config.json of models whose weights are made up, by name.

What a token costs on such a shape is ``minivllm.lab.sim.cost``'s business.
"""

from minivllm.utils.toml_data import load_toml

_DATA = load_toml(__package__, "shapes")
SHAPES = _DATA["shapes"]
MINIATURE = _DATA["miniature"]
