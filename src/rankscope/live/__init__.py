"""What a running job says about itself: its key-value store, read while the job runs."""
