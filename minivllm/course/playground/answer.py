"""answer: one request of the page, as JSON, and its reply. The worker and the server call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from minivllm.course.playground import learn
from minivllm.course.playground.cells import cell
from minivllm.course.playground.readers_code import InReadersCode
from minivllm.course.playground.run import run, steps
from minivllm.utils.validation import check, is_one_of

CALLS: dict[str, Callable[..., dict[str, Any]]] = {
    "run": run,
    "steps": steps,
    "contents": learn.contents,
    "grade_lab": learn.grade_lab,
    "lab_progress": learn.lab_progress,
    "peek_lab": learn.peek_lab,
    "open_progress": learn.open_progress,
    "exercise": learn.exercise,
    "grade_exercise": learn.grade_exercise,
    "cell": cell,
}


def answer(text: str) -> str:
    """Answer one request.

    Args:
        text: a JSON object; "call" names what is asked, the other fields are its arguments.

    Returns: a JSON object. If something was wrong it has "error", a sentence; and if it was in the
        reader's code "line", the number of the line or null.
    """
    try:
        fields = json.loads(text)
        check(isinstance(fields, dict), "a request", fields, "an object")
        call = fields.pop("call", None)
        check(is_one_of(call, CALLS), "call", call, "one of " + ", ".join(CALLS))
        reply = CALLS[call](**fields)
    except InReadersCode as error:
        reply = {"error": str(error), "line": error.line}
    except ValueError as error:
        reply = {"error": str(error)}
    except Exception as error:  # the page goes on, whatever it was
        reply = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(reply, separators=(",", ":"))
