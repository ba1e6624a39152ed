"""Two captures compared: what is new, what is gone, what takes a different time, beyond what noise explains."""
