"""Definitions of the operators in float64 and by brute force, to check the reference.

They are written from the contract's docstrings and the model specification, share no code with the
reference, and take small inputs on the host.
"""
