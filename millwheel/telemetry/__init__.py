"""OpenTelemetry: spans of sampled records, and metrics, by OTLP. Only who asks for it imports this package."""
