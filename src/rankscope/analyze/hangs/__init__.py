"""Why a job hangs: what its Flight Recorder dumps tell."""
