"""The critical path through the steps, and pipeline bubbles."""
