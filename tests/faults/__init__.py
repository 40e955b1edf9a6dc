"""Real processes under real faults (`make test-faults`), and under a load for long (`make soak`)."""
