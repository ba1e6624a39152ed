"""Verdicts from what the ranks printed: who is behind, who failed first, what ended the job."""
