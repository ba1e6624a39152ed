"""What profiler traces tell about the host: operators, launches, waits."""
