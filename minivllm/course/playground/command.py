"""``minivllm playground``: the page on this machine, without npm and without a network."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from minivllm.utils.console import exit_on_bad_input


def playground(
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 takes a free one.")] = 8765,
    browser: Annotated[bool, typer.Option(help="Open the page.")] = True,
    lang: Annotated[
        str, typer.Option(envvar="MINIVLLM_LANG", help="Its language at first: en or zh.")
    ] = "en",
) -> None:
    """Play with the scheduler on a page: settings, figures, and a policy of your own."""
    from minivllm.course.playground.server import PlaygroundServer

    with exit_on_bad_input():
        server = PlaygroundServer(port)
        address = server.address(lang)
    print(f"The playground is at {address} until Ctrl-C ends it.", flush=True)
    if browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
