"""Tool parsers: extract a model's function calls from its text.

Each family of models was trained on another syntax. There is a parser and a chat template for
each. (vLLM: vllm/tool_parsers/; 0.6.6: vllm/entrypoints/openai/tool_parsers/)
"""

from minivllm.entrypoints.openai.tool_parsers.abstract_tool_parser import (
    ToolParser,
    ToolParserManager,
)
from minivllm.entrypoints.openai.tool_parsers.hermes_tool_parser import HermesToolParser
from minivllm.entrypoints.openai.tool_parsers.llama_tool_parser import Llama3JsonToolParser
from minivllm.entrypoints.openai.tool_parsers.mistral_tool_parser import MistralToolParser
from minivllm.entrypoints.openai.tool_parsers.pythonic_tool_parser import PythonicToolParser

__all__ = [
    "HermesToolParser",
    "Llama3JsonToolParser",
    "MistralToolParser",
    "PythonicToolParser",
    "ToolParser",
    "ToolParserManager",
]
