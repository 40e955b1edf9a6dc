"""The gRPC client: submit and inspect topologies, inject records, subscribe to streams."""
