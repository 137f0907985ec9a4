"""/glass: the page, its stream of pictures, and the endpoints that pause the engine."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from jinja2 import PackageLoader
from starlette.responses import HTMLResponse, RedirectResponse

from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.openai.errors import JSON, RequestError
from minivllm.entrypoints.openai.glass.show import GlassShow
from minivllm.entrypoints.openai.streaming.event_stream import IteratorResponse
from minivllm.lab.viz.page.page import environment

LOOPBACK = ("127.0.0.1", "localhost", "::1")


async def same_origin(raw: Request) -> None:
    """Dependency: refuse requests from pages of other origins.

    A browser sends the page's origin in Origin. On loopback, Host must be one of loopback's names:
    any other name in it is a foreign domain that resolves to this machine (DNS rebinding).
    """
    host = raw.headers.get("host", "")
    origin = raw.headers.get("origin")
    name = urlsplit(f"//{host}").hostname
    known = raw.app.state.served.args.host not in LOOPBACK or name in LOOPBACK
    if not known or (origin is not None and urlsplit(origin).netloc != host):
        raise RequestError(
            f"/glass is for pages of this server, not of {origin or host!r}",
            status=HTTPStatus.FORBIDDEN,
            kind="Forbidden",
        )


router = APIRouter(
    prefix="/glass", dependencies=[Depends(same_origin)], include_in_schema=False
)  # fmt: skip


@router.get("")
async def page(raw: Request):
    """The page. It loads only its stream of pictures."""
    return HTMLResponse(raw.app.state.glass_page())


@router.get("/events")
async def events(raw: Request):
    """The stream of pictures."""
    return IteratorResponse(raw.app.state.glass.watch())


@router.post("/pause")
async def pause(raw: Request):
    """Pause the engine: running requests keep their blocks, new ones wait."""
    await raw.app.state.glass.set_pace(0)
    return JSON({"status": "paused"})


@router.post("/step")
async def step(raw: Request):
    """Run one step, and pause again."""
    await raw.app.state.glass.take_step()
    return JSON({"status": "paused"})


@router.post("/resume")
async def resume(raw: Request, steps_per_second: float | None = Query(None, gt=0, le=100)):
    """Resume, at full speed or at a number of steps a second."""
    await raw.app.state.glass.set_pace(steps_per_second)
    return JSON({"status": "resumed"})


async def to_the_page():
    """Send a browser from the server's root to the page."""
    return RedirectResponse("glass")


def add_glass(
    app: FastAPI, engine: AsyncLLM, title: str, chat_template: str | None = None,
    small: bool = False, attached: bool = False,
) -> None:  # fmt: skip
    """Add the page and its endpoints to an application.

    Args:
        app: the application.
        engine: one that writes a trace.
        title: the name of the model.
        chat_template: the server's; None: the tokenizer's own.
        small: whether the pool is small because no size was asked for.
        attached: whether it is a run that another process makes: nothing is asked or paused.

    Raises:
        ValueError: if the engine writes no trace.
    """
    app.state.glass = GlassShow(engine, chat_template, small, attached)
    templates = environment(PackageLoader("minivllm.entrypoints.openai", "glass"))
    template = templates.get_template("glass.html")
    app.state.glass_page = lambda: template.render(title=title, chats=not attached)
    app.include_router(router)
    app.add_api_route("/", to_the_page, include_in_schema=False)
