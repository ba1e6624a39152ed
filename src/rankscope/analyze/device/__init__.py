"""What profiler traces show about the devices."""
