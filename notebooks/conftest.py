"""Build matplotlib's font cache before any notebook runs, so that no cell reports doing it."""

import matplotlib.font_manager  # noqa: F401
