"""Definitions in float64 or by brute force, which share no code with any backend."""
