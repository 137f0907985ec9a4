"""A process that loads a model and makes one token, for ``minivllm bench start``.

Its argument is the time at which it was started, and the arguments of ``LLM`` come on stdin, as
JSON. The last line of its output says in JSON where the seconds have gone. Nothing is imported
before the clock is read.
"""

from __future__ import annotations

import json
import sys
import time

PROMPT = list(range(10, 18))


def main() -> None:
    """Load, answer, and print the seconds of each part."""
    started = float(sys.argv[1])
    options = json.loads(sys.stdin.read())
    from minivllm.entrypoints.llm import LLM  # timed
    from minivllm.sampling_params import SamplingParams

    imported = time.time()
    llm = LLM(**options, skip_tokenizer_init=options["load_format"] == "dummy")
    loaded, compiled_to_load = time.time(), _seconds_of_compiling()
    one = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    llm.generate([{"prompt_token_ids": PROMPT}], one, use_tqdm=False)
    answered, compiled = time.time(), _seconds_of_compiling()
    seconds = {
        "import_s": imported - started,
        "load_s": loaded - imported - compiled_to_load,
        "compile_s": compiled,
        "first_step_s": answered - loaded - (compiled - compiled_to_load),
        "total_s": answered - started,
    }
    print(json.dumps(seconds))


def _seconds_of_compiling() -> float:
    """Seconds of compiling until now; none, if nothing has needed numba."""
    compiling = sys.modules.get("minivllm.cpu.compiling")
    return 0.0 if compiling is None else compiling.listener.seconds


if __name__ == "__main__":
    main()
