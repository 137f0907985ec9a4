"""Streams of server-sent events.

The way of a token: the engine's ``RequestOutputCollector`` gives an output to a
``GenerationResponse``, whose ``ChunkBuilder`` makes OpenAI's chunks of it; a ``ChunkWriter`` writes
them as bytes, and the response sends these.
"""
