"""Observation of an engine: counters, statistics line, timers, profiling, garbage collection."""
