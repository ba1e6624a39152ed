"""What the collector measures of the training itself: hooks in the job's thread, samples in the collector's."""
