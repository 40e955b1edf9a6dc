"""The count from topic to topic by MillWheel and by other stream processors, on one broker (`make bench-peers`)."""
