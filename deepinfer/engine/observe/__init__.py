"""What watches an engine: counters, the statistics line, timers, profiling, garbage collection."""
