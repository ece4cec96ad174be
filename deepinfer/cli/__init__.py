"""The `deepinfer` command."""
