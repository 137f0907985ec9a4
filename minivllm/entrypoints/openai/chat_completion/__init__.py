"""/v1/chat/completions: conversations."""
