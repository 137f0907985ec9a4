"""The glass server: a page that chats, and shows live what the engine does with it."""
