"""K and V between engines: a connector sends a prompt's blocks, or gets them from elsewhere."""
