"""Definitions in float64 and by brute force that judge the reference; they share no code with it.

Written from the contract's docstrings and the model specification, for small inputs on the host.
"""
