"""Proof of a backend: the conformance suite (`suite`, `cases`), and golden data (`golden`)."""
