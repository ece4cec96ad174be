"""Checks of a backend: golden data here, the conformance suite later."""
