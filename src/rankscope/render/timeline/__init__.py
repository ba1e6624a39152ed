"""Timelines in the format of Chrome and Perfetto: what was recorded of all ranks, on one clock."""
