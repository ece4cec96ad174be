"""What the bundled checkpoint is made of; `scripts/make_checkpoint.py` puts it together."""
