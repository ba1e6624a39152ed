"""What profiler traces of several ranks show about communication."""
