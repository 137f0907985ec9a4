"""/v1/completions: prompts that are continued."""
