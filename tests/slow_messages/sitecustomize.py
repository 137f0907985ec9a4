"""A random stop before each message between processes: no test may hang on who is quicker.

``SLOW_MESSAGES=0.05 pytest tests/distributed`` lets every message of a pipe wait for up to 50 ms,
in all processes: Python imports this file when one begins, since conftest.py puts its folder into
``PYTHONPATH``.
"""

import os
import random
import time
from functools import wraps
from multiprocessing.connection import Connection


def slow(send):
    """Let a function that sends wait before it does."""
    rng, longest = random.Random(), float(os.environ["SLOW_MESSAGES"])

    @wraps(send)
    def stop_and_send(*args, **kwargs):
        time.sleep(rng.uniform(0, longest))
        return send(*args, **kwargs)

    return stop_and_send


if "SLOW_MESSAGES" in os.environ:
    Connection._send_bytes = slow(Connection._send_bytes)
