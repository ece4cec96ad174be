"""Independent definitions of the operators, which the reference is checked against.

They are written from the contract's docstrings and the model specification and share no code with
the reference. They compute in float64 or by brute force, for small inputs on the host.
"""
