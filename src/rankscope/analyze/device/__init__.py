"""What profiler traces tell about the devices."""
