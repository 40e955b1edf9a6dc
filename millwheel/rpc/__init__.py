"""gRPC between the roles: channels, servers and failures. The generated stubs are in ``v1``."""
