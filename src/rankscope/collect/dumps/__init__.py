"""What is written when a job hangs or dies: stacks of all threads, and the calls that torch's recorder has kept."""
