"""The null backend: results of the right shapes and no work, to measure the engine alone."""
