"""Productions that their consumers have not ACKed, and the order in which they are sent (6.1.1; G9, G15)."""
