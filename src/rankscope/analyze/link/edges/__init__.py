"""The table et_edges: what had to come before what."""
