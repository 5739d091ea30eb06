"""Measuring speed: this engine alone, and beside others on the same file and prompts."""
