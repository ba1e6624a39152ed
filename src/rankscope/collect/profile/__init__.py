"""Training steps, and what torch's profiler and execution trace observer record of some of them."""
