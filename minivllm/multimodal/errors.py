"""MediaError: an item that cannot be had or read."""

from __future__ import annotations

from http import HTTPStatus


class MediaError(ValueError):
    """Error of an item that a prompt names; ``status`` is what a server answers.

    Its message never has a path of this machine, nor says whether a file is there that may not be
    read.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST):
        super().__init__(message)
        self.status = status

    def __reduce__(self):
        return type(self), (str(self), self.status)
