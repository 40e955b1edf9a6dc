"""What a record costs by the number of keys, the size of values, the number of consumers, and skewed keys."""
