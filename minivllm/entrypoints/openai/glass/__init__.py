"""Glass server: a chat page that shows the engine's work live."""
