"""What a running job tells about itself: its key-value store, read while the job runs."""
