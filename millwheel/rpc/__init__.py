"""gRPC between the roles: channels, servers, failures; the generated stubs are in ``v1``."""
