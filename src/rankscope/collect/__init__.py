"""What runs inside a training job: standard library only, torch imported inside functions.

It never raises into the job, never blocks it and costs next to nothing: whatever fails here ends the part that it
failed in, and is told in the manifest.
"""
