"""The worker: owns key intervals, runs computations on them and keeps their journals (6, 7.1)."""
