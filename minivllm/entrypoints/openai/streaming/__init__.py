"""Streams of server-sent events: responses, and the chunks in them."""
