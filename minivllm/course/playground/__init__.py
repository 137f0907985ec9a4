"""The playground: the real scheduler behind a page, in the browser or on this machine. No torch."""
