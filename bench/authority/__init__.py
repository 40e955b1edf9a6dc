"""The watermark authority with the paper's 500,000 key intervals (section 7.2): its core alone, and as a service."""
