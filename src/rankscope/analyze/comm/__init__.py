"""What profiler traces of several ranks tell about communication."""
