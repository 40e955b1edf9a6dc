"""A count by key and window from topic to topic of Kafka: its input, the program, and the check of its results."""
