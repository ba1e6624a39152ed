"""Two captures compared: what is new, what is gone, what takes another time, beyond what noise explains."""
