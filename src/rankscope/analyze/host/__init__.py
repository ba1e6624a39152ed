"""What profiler traces show about the host: operators, launches, waits."""
