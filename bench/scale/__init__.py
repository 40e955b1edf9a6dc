"""A stage on 20 to 2,000 workers, simulated with service times that were measured (figure 14)."""
