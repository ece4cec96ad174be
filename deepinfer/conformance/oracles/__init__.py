"""Definitions that judge the reference: float64 or brute force, sharing no code with it."""
